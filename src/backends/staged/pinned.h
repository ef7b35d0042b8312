// SPDX-License-Identifier: BSD-3-Clause
//
// Host memory that the device copies to and from by itself. Allocating it costs milliseconds, so blocks are reused.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/objects.h"

namespace cohort::staged {

class PinnedBlock {
 public:
  PinnedBlock(cuda::ContextPtr context, std::size_t bytes);
  /// The driver waits here if a copy still uses the memory.
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  cuda::ContextPtr context_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};
using PinnedPtr = std::unique_ptr<PinnedBlock>;

/// Blocks have sizes of powers of two: the pool never holds more than twice what was in use at once. Thread-safe.
class PinnedPool {
 public:
  explicit PinnedPool(cuda::ContextPtr context) : context_(std::move(context)) {}
  /// A block of at least `bytes`.
  PinnedPtr take(std::size_t bytes);
  void give_back(PinnedPtr block);

 private:
  cuda::ContextPtr context_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<PinnedPtr>> free_;
};

}  // namespace cohort::staged
