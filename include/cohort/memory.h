// SPDX-License-Identifier: BSD-3-Clause
//
// Memory of the group: memory that every rank on the host can see, so that collectives on it copy nothing.
//
//   auto memory = pg->allocate(bytes);                                  // local, not collective; zeroed
//   std::span<float> x = memory.as<float>();
//   pg->all_reduce(x);
//
//   std::vector<float, cohort::Allocator<float>> v(n, 0.0F, cohort::Allocator<float>(pg));   // the same for containers
//
// The handle owns the memory and stays valid when the group is gone. Ranks may mix memory of the group and ordinary
// memory in one operation. Pages are reserved when allocated: lack of memory is an Error here and never a signal later.
#pragma once

#include <cohort/dtype.h>
#include <cohort/export.h>

#include <cstddef>
#include <memory>
#include <span>

namespace cohort {

class ProcessGroup;

class COHORT_API GroupMemory {
 public:
  GroupMemory() = default;
  /// `owner` frees the memory.
  GroupMemory(std::shared_ptr<void> owner, void* data, std::size_t bytes)
      : owner_(std::move(owner)), data_(data), bytes_(bytes) {}

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  template <Element T>
  std::span<T> as() const noexcept {
    return {static_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  /// For Buffer's keep-alive.
  const std::shared_ptr<void>& owner() const noexcept { return owner_; }

 private:
  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

namespace detail {
COHORT_API void* allocate_group_memory(ProcessGroup& group, std::size_t bytes);
COHORT_API void free_group_memory(void* data) noexcept;
}  // namespace detail

/// For containers whose elements lie in memory of the group. Each allocation is a whole number of pages.
template <class T>
class Allocator {
 public:
  using value_type = T;

  explicit Allocator(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  template <class U>
  explicit(false) Allocator(const Allocator<U>& other) : group_(other.group()) {}

  T* allocate(std::size_t n) { return static_cast<T*>(detail::allocate_group_memory(*group_, n * sizeof(T))); }
  void deallocate(T* data, std::size_t /*n*/) noexcept { detail::free_group_memory(data); }
  const std::shared_ptr<ProcessGroup>& group() const noexcept { return group_; }

  template <class U>
  bool operator==(const Allocator<U>& /*other*/) const noexcept {
    return true;  // memory is freed by its address alone
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace cohort
