// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/pinned.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace cohort::staged {

namespace {
constexpr std::size_t smallest = 4096;
}

PinnedBlock::PinnedBlock(cuda::ContextPtr context, std::size_t bytes) : context_(std::move(context)), bytes_(bytes) {
  const cuda::Current current(*context_);
  void* data = nullptr;
  cuda::check(context_->driver(), context_->driver().host_allocate(&data, bytes), "cuMemAllocHost");
  data_ = static_cast<std::byte*>(data);
}

PinnedBlock::~PinnedBlock() {
  const cuda::Current current(*context_);
  context_->driver().host_free(data_);
}

PinnedPtr PinnedPool::take(std::size_t bytes) {
  const auto size = std::bit_ceil(std::max(bytes, smallest));
  {
    const std::lock_guard lock(mutex_);
    auto& blocks = free_[size];
    if (!blocks.empty()) {
      auto block = std::move(blocks.back());
      blocks.pop_back();
      return block;
    }
  }
  return std::make_unique<PinnedBlock>(context_, size);
}

void PinnedPool::give_back(PinnedPtr block) {
  const std::lock_guard lock(mutex_);
  free_[block->bytes()].push_back(std::move(block));
}

}  // namespace cohort::staged
