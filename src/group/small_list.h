// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace cohort {

/// A list that allocates only when it grows past N, and costs nothing for the places it does not use.
template <class T, std::size_t N = 8>
class SmallList {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  // Not defaulted: `SmallList x{}` would then clear all of it first.
  SmallList() noexcept {}  // NOLINT(modernize-use-equals-default)
  SmallList(const SmallList& other) : size_(other.size_), many_(other.many_) {
    std::memcpy(few_, other.few_, std::min(size_, N) * sizeof(T));
  }
  SmallList& operator=(const SmallList&) = delete;
  ~SmallList() = default;

  void push_back(const T& value) {
    if (size_ < N) {
      std::memcpy(few_ + size_ * sizeof(T), &value, sizeof(T));
    } else {
      if (size_ == N) many_.assign(begin(), end());
      many_.push_back(value);
    }
    ++size_;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  const T* data() const { return size_ <= N ? reinterpret_cast<const T*>(few_) : many_.data(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  // NOLINTNEXTLINE(google-explicit-constructor): it is a span in all but storage
  operator std::span<const T>() const { return {data(), size_}; }

 private:
  std::size_t size_ = 0;
  alignas(T) std::byte few_[N * sizeof(T)];  // NOLINT(*-avoid-c-arrays): uninitialised on purpose
  std::vector<T> many_;
};

}  // namespace cohort
