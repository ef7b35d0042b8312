// SPDX-License-Identifier: BSD-3-Clause
#include "group_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <cohort/memory.h>
#include <cohort/torch/c10d.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "torch/compat/features.h"

#if !COHORT_TORCH_HAS_C10D_BACKEND

namespace cohort::python {

namespace {

thread_local ProcessGroupPtr group_of_this_thread;

/// The allocator that there was before, except in threads that have asked for memory of a group.
class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* ordinary) : ordinary_(ordinary) {}

  c10::DataPtr allocate(std::size_t bytes) const override {
    if (group_of_this_thread == nullptr || bytes < least_bucket_in_group_memory) return ordinary_->allocate(bytes);
    auto memory = std::make_unique<GroupMemory>(group_of_this_thread->allocate(bytes));
    auto* const data = memory->data();
    const auto free = [](void* owner) { std::unique_ptr<GroupMemory>(static_cast<GroupMemory*>(owner)).reset(); };
    return {data, memory.release(), free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return ordinary_->raw_deleter(); }

 private:
  c10::Allocator* const ordinary_;
};

}  // namespace

void allocate_tensors_in(ProcessGroupPtr group) {
  static std::once_flag is_installed;
  std::call_once(is_installed, [] {
    // Never destroyed: tensors may outlive everything.
    static auto* const allocator = std::make_unique<HostAllocator>(c10::GetCPUAllocator()).release();
    c10::SetCPUAllocator(allocator);
  });
  group_of_this_thread = std::move(group);
}

}  // namespace cohort::python

#endif
