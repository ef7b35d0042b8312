// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cohort {

/// A list that allocates only when it grows past N.
template <class T, std::size_t N = 8>
class SmallList {
 public:
  void push_back(const T& value) {
    if (size_ < N) {
      few_[size_] = value;
    } else {
      if (size_ == N) many_.assign(few_.begin(), few_.end());
      many_.push_back(value);
    }
    ++size_;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  const T* data() const { return size_ <= N ? few_.data() : many_.data(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  // NOLINTNEXTLINE(google-explicit-constructor): it is a span in all but storage
  operator std::span<const T>() const { return {data(), size_}; }

 private:
  std::size_t size_ = 0;
  std::array<T, N> few_;
  std::vector<T> many_;
};

}  // namespace cohort
