// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

namespace cohort {

/// A value whose destructor never runs, for statics that other threads may use while the process exits:
///
///   static Immortal<Registry> registry;
///   return *registry;
template <class T>
class Immortal {
 public:
  template <class... Args>
  explicit Immortal(Args&&... args) : value_(std::forward<Args>(args)...) {}
  ~Immortal() {}  // NOLINT(modernize-use-equals-default): the union's would be deleted
  Immortal(const Immortal&) = delete;
  Immortal& operator=(const Immortal&) = delete;

  T& operator*() { return value_; }
  const T& operator*() const { return value_; }
  T* operator->() { return &value_; }

 private:
  union {
    T value_;
  };
};

}  // namespace cohort
