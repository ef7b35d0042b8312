// SPDX-License-Identifier: BSD-3-Clause
//
// Group memory: memory that every rank on the host can access, so that collectives on it need no copies.
//
//   auto memory = pg->allocate(bytes);                                  // not a collective call; the memory is zeroed
//   std::span<float> x = memory.as<float>();
//   pg->all_reduce(x);
//
//   std::vector<float, cohort::Allocator<float>> v(n, 0.0F, cohort::Allocator<float>(pg));   // for containers
//
// The handle owns the memory and stays valid after the group is destroyed. In one operation, some ranks may use group
// memory and others ordinary memory. Pages are reserved on allocation: if memory runs out, allocate() throws Error, and
// no access raises a signal later.
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
  /// Destroying `owner` frees the memory.
  GroupMemory(std::shared_ptr<void> owner, void* data, std::size_t bytes)
      : owner_(std::move(owner)), data_(data), bytes_(bytes) {}

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  template <Element T>
  std::span<T> as() const noexcept {
    return {static_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  /// For the keep-alive of a Buffer.
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

/// For containers whose elements lie in group memory. Each allocation takes a whole number of pages.
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
    return true;  // freeing memory needs only its address
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace cohort
