// SPDX-License-Identifier: BSD-3-Clause
//
// A Reduction is a reduction of your own, of numbers or of structs, in host memory:
//
//   struct Best { float value; std::int32_t index; };
//   const cohort::Reduction<Best> best("best", [](Best& so_far, const Best& next) {
//     if (next.value > so_far.value) so_far = next;
//   });
//   std::vector<Best> bests(100);
//   pg->all_reduce(bests, {.op = best});
//
//   const cohort::Reduction<float> largest("largest by size", [](std::span<float> so_far, std::span<const float> next) {
//     for (std::size_t i = 0; i < so_far.size(); ++i) so_far[i] = std::max(so_far[i], std::abs(next[i]));
//   });
//
// all_reduce, reduce and reduce_scatter accept it, one buffer at a time and not in a batch, on every backend that works
// on host memory and has all_to_all and all_gather: thread, shm, gloo, mpi and hybrid. On device memory it is a
// NotSupportedError; capabilities().user_reductions tells beforehand.
//
// - Order: the values are combined in rank order, from left to right: f(f(x0, x1), x2). The function need not be
//  commutative, and the result has the same bits on every backend.
// - Ranks must pass Reductions of the same name and type, and buffers of the same shape. These are compared in every
//  call, and a difference is a MismatchError on all ranks. That two functions of one name are the same function is the
//  program's responsibility.
// - If the function throws on any rank, every rank gets a DistributedError with the text of the exception. The group
//  stays usable, and the content of the outputs is unspecified.
// - The function is called on the thread that performs the operation, the caller's or the group's own, for all elements
//  of this rank's share. It must not use the group. Ranks that are threads and share a Reduction call it concurrently.
// - The Reduction must exist until the operation has ended, like the memory of a borrowed buffer.
//
// The cost: the pieces are exchanged as by an all_to_all and gathered as by an all_gather, which moves as many bytes as
// a built-in reduction; in addition there are two exchanges of a few hundred bytes, and memory for one more copy of the
// buffer.
#pragma once

#include <cohort/buffer.h>
#include <cohort/dtype.h>
#include <cohort/export.h>
#include <cohort/reduce_op.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace cohort {

namespace detail {

/// A Reduction without its type.
struct UserReduction {
  std::string name;
  DType dtype;
  std::size_t element_bytes;
  std::size_t alignment;
  /// so_far[i] = f(so_far[i], next[i]); both are aligned.
  std::function<void(void* so_far, const void* next, std::size_t elements)> combine;
};

/// Returns the name. Throws ValueError if it is empty or longer than 100 characters, because names are compared.
COHORT_API std::string checked_reduction_name(std::string name);

template <class F, class T>
concept CombinesElements = std::invocable<F&, T&, const T&>;
template <class F, class T>
concept CombinesSpans = std::invocable<F&, std::span<T>, std::span<const T>>;

template <class T, class F>
std::function<void(void*, const void*, std::size_t)> without_type(F function) {
  return [function = std::move(function)](void* so_far, const void* next, std::size_t elements) mutable {
    const std::span<T> left(static_cast<T*>(so_far), elements);
    const std::span<const T> right(static_cast<const T*>(next), elements);
    if constexpr (CombinesElements<F, T>) {
      for (std::size_t i = 0; i < elements; ++i) function(left[i], right[i]);
    } else {
      function(left, right);
    }
  };
}

}  // namespace detail

/// T is a type with a dtype, or any other trivially copyable type.
template <class T>
class Reduction {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>,
                "cohort::Reduction<T>: T is a number (dtype.h) or a trivially copyable struct: a class whose copies "
                "can be made by copying bytes, without containers and strings in it");

 public:
  /// Throws ValueError if the name, by which ranks compare reductions, is empty or longer than 100 characters.
  /// `function` is called as f(T& so_far, const T& next) or f(std::span<T> so_far, std::span<const T> next); a function
  /// that can be called in both ways is called in the first.
  template <class F>
    requires(detail::CombinesElements<F, T> || detail::CombinesSpans<F, T>)
  Reduction(std::string name, F function)
      : erased_{.name = detail::checked_reduction_name(std::move(name)),
                .dtype = detail::dtype_or_raw<T>(),
                .element_bytes = sizeof(T),
                .alignment = alignof(T),
                .combine = detail::without_type<T>(std::move(function))} {}
  // Operations refer to it by its address.
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  ~Reduction() = default;

  const std::string& name() const noexcept { return erased_.name; }

  explicit(false) operator ReduceOp() const& { return ReduceOp(&erased_); }
  operator ReduceOp() const&& = delete;  ///< a temporary would be gone before an asynchronous operation ends

 private:
  detail::UserReduction erased_;
};

}  // namespace cohort
