// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's gloo process group behind names of our own: its headers and ours never meet in one translation unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::bench {

class TorchGroup {
 public:
  /// Whether this program was built with PyTorch and gloo; without them the rest throws.
  static bool is_available();

  /// Connects to the store, which is TorchStore's; the group is not made yet.
  TorchGroup(const std::string& host, std::uint16_t store_port);
  ~TorchGroup();
  TorchGroup(const TorchGroup&) = delete;
  TorchGroup& operator=(const TorchGroup&) = delete;

  /// The device, which is a thread of its own and part of every first group, and the group over it.
  void make(int rank, int size);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort::bench
