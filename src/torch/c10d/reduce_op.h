// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/error.h>
#include <cohort/reduce_op.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace cohort {

namespace detail {

/// The factor is one number or a tensor of one element, which libtorch 1.13 keeps in a list.
template <class Supplement>
double premul_factor(const Supplement& supplement) {
  if constexpr (requires { supplement.tensor_factor; }) {
    return supplement.tensor_factor.defined() ? supplement.tensor_factor.item().toDouble() : supplement.double_factor;
  } else {
    return supplement.tensor_factors.empty() ? supplement.double_factor
                                             : supplement.tensor_factors.front().item().toDouble();
  }
}

}  // namespace detail

inline ReduceOp reduce_op_from(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum();
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg();
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product();
    case c10d::ReduceOp::MIN:
      return ReduceOp::min();
    case c10d::ReduceOp::MAX:
      return ReduceOp::max();
    case c10d::ReduceOp::BAND:
      return ReduceOp::band();
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor();
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor();
    case c10d::ReduceOp::PREMUL_SUM:
      if (!op.supplement_) throw ValueError("PREMUL_SUM without a factor: make it with _make_nccl_premul_sum");
      // c10d keeps the factor under this type for every backend.
      return ReduceOp::premul_sum(
          detail::premul_factor(static_cast<const c10d::NCCLPreMulSumSupplement&>(*op.supplement_)));
    case c10d::ReduceOp::UNUSED:
      break;
  }
  throw ValueError("a ReduceOp that c10d does not use");
}

}  // namespace cohort
