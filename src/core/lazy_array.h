// SPDX-License-Identifier: BSD-3-Clause
//
// An array of zeros that takes memory page by page, as it is touched: for rings and tables of which most programs use
// only a little. Its elements are never constructed, so T must be a type whose zero value has all bytes zero, as the
// standard library's atomics do.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>

namespace cohort {

template <class T>
class LazyArray {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 4096);

 public:
  explicit LazyArray(std::size_t count) : count_(count) {
    if (count == 0) return;
    void* const at = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(at);
  }
  ~LazyArray() {
    if (data_ != nullptr) ::munmap(data_, count_ * sizeof(T));
  }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

}  // namespace cohort
