// SPDX-License-Identifier: BSD-3-Clause
//
// A ReduceOp says how the values of all ranks are combined into one.
//
//   pg->all_reduce(x, {.op = cohort::ReduceOp::max()});
//   pg->all_reduce(x, {.op = cohort::ReduceOp::premul_sum(0.5)});   // each rank's x times its own factor, then summed
//   assert(cohort::parse_reduce_op("sum") == cohort::ReduceOp::sum());
//
// The reductions of each element type:
//
// ```text
//   f16 bf16 f32 f64        sum avg product min max premul_sum
//   i8 i16 i32 i64          sum product min max band bor bxor             sum and product wrap around
//   u8 u16 u32 u64          the same
//   bool                    sum product min max band bor bxor             sum and max are "or", product and min "and"
//   complex64 complex128    sum avg premul_sum                            as pairs of reals
//   raw (structs)           none of these
// ```
//
// A reduction of your own, of any of these types and of structs, is a Reduction (reduction.h). If any value is NaN, min
// and max are NaN. f16 and bf16 are accumulated in f32 and rounded once, at the end.
#pragma once

#include <cohort/buffer.h>
#include <cohort/dtype.h>
#include <cohort/export.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cohort {

namespace detail {
struct UserReduction;
}  // namespace detail
template <class T>
class Reduction;

class COHORT_API ReduceOp {
 public:
  /// `user` is a reduction of the user's own.
  enum class Kind : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum, user };

  /// The sum.
  constexpr ReduceOp() = default;
  /// Throws ValueError for premul_sum, which needs a factor (use premul_sum() below), and for user, which needs a
  /// Reduction.
  constexpr explicit(false) ReduceOp(Kind kind) : kind_(kind) {
    if (kind >= Kind::premul_sum) refuse(kind);
  }

  static constexpr ReduceOp sum() { return Kind::sum; }
  static constexpr ReduceOp avg() { return Kind::avg; }
  static constexpr ReduceOp product() { return Kind::product; }
  static constexpr ReduceOp min() { return Kind::min; }
  static constexpr ReduceOp max() { return Kind::max; }
  static constexpr ReduceOp band() { return Kind::band; }
  static constexpr ReduceOp bor() { return Kind::bor; }
  static constexpr ReduceOp bxor() { return Kind::bxor; }
  /// The factor applies to this rank's values; other ranks may have other factors.
  static constexpr ReduceOp premul_sum(double factor) { return {Kind::premul_sum, factor}; }
  /// Reads the factor from host memory at once. Throws ValueError unless the buffer is one element of a floating-point
  /// type.
  static ReduceOp premul_sum(const ConstBuffer& one_element);

  constexpr Kind kind() const noexcept { return kind_; }
  /// 1 unless this is a premul_sum.
  constexpr double factor() const noexcept { return factor_; }

  /// The user's own reduction; null for all other kinds.
  constexpr const detail::UserReduction* user() const noexcept { return user_; }

  /// Compares kinds, and for `user` the Reduction: all premul_sum are equal, because each rank has its own factor.
  friend constexpr bool operator==(const ReduceOp& a, const ReduceOp& b) noexcept {
    return a.kind_ == b.kind_ && a.user_ == b.user_;
  }
  friend constexpr bool operator==(const ReduceOp& a, Kind b) noexcept { return a.kind_ == b; }

 private:
  template <class T>
  friend class Reduction;
  constexpr ReduceOp(Kind kind, double factor) : kind_(kind), factor_(factor) {}
  constexpr explicit ReduceOp(const detail::UserReduction* user) : kind_(Kind::user), user_(user) {}
  [[noreturn]] static void refuse(Kind kind);

  Kind kind_ = Kind::sum;
  double factor_ = 1;
  const detail::UserReduction* user_ = nullptr;
};

/// "sum", "avg", ...
COHORT_API std::string_view to_string(ReduceOp::Kind kind);
/// The same; for a reduction of the user's own, the name that it was given.
COHORT_API std::string_view to_string(const ReduceOp& op);
/// Accepts all names except "premul_sum", which does not say the factor, and "user". Throws a ValueError that lists the
/// names otherwise.
COHORT_API ReduceOp parse_reduce_op(std::string_view name);

/// Text such as "premul_sum:0x1.8p+1", from which deserialize_reduce_op() makes the same op with exactly the same
/// factor. Throws ValueError for a reduction of the user's own, which is a function.
COHORT_API std::string serialize(const ReduceOp& op);
/// Throws ValueError if the text is malformed.
COHORT_API ReduceOp deserialize_reduce_op(std::string_view text);

/// Whether the table at the top of this file contains the combination.
COHORT_API bool is_reducible(DType dtype, const ReduceOp& op);
/// Throws a TypeError that lists the reductions of the dtype, unless is_reducible().
COHORT_API void check_reducible(DType dtype, const ReduceOp& op);

}  // namespace cohort

template <>
struct std::hash<cohort::ReduceOp> {
  std::size_t operator()(const cohort::ReduceOp& op) const noexcept { return static_cast<std::size_t>(op.kind()); }
};
