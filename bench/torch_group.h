// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's gloo process group behind an interface of our own: PyTorch's headers and ours never share a translation
// unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::bench {

class TorchGroup {
 public:
  /// Whether this program was built with PyTorch and gloo; without them every other function throws.
  static bool is_available();

  /// Connects to a TorchStore; the group is not made yet.
  TorchGroup(const std::string& host, std::uint16_t store_port);
  ~TorchGroup();
  TorchGroup(const TorchGroup&) = delete;
  TorchGroup& operator=(const TorchGroup&) = delete;

  /// Makes the device, which starts a thread and belongs to every first group, and the group on it.
  void make(int rank, int size);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort::bench
