// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's own C++ reducer on its Gloo group, without Python around it.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace cohort::benchmarks {

class TorchReducer {
 public:
  /// Whether this libtorch's headers have it in the shape we know.
  static bool is_available();

  /// `file`: where the ranks meet.
  TorchReducer(const std::string& file, int rank, int size);
  ~TorchReducer();

  void wrap(const std::vector<torch::Tensor>& parameters, bool gradient_as_bucket_view);
  void before_forward();
  void before_backward(const torch::Tensor& output);
  void unwrap();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort::benchmarks
