// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/c10d_reduction.h"

#include <cohort/error.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <string>

namespace cohort {

namespace {

using Kind = ReduceOp::Kind;
using C10dOp = c10d::ReduceOp;

[[noreturn]] void refuse(const Operation& op) {
  throw NotSupportedError(
      fmt::format("{}: c10d has no {} of {}", to_string(op.type), to_string(op.reduce), to_string(op.dtype)),
      {.op = std::string(to_string(op.type))});
}

C10dOp::RedOpType c10d_op(const Operation& op) {
  switch (op.reduce.kind()) {
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
      return C10dOp::SUM;
    case Kind::product:
      return C10dOp::PRODUCT;
    case Kind::min:
      return C10dOp::MIN;
    case Kind::max:
      return C10dOp::MAX;
    case Kind::band:
      return C10dOp::BAND;
    case Kind::bor:
      return C10dOp::BOR;
    case Kind::bxor:
      return C10dOp::BXOR;
    case Kind::user:
      break;
  }
  refuse(op);
}

/// As numbers 0 and 1, since some backends have no bool and some no bitwise operations.
C10dOp::RedOpType op_of_bools(const Operation& op) {
  switch (op.reduce.kind()) {
    case Kind::sum:
    case Kind::bor:
      return C10dOp::MAX;
    case Kind::product:
    case Kind::band:
      return C10dOp::MIN;
    default:
      return c10d_op(op);
  }
}

/// libtorch 1.13 has no unsigned types but u8, and the backends of later versions do not reduce them. Arithmetic that
/// wraps around is the same for signed numbers; their order is not.
at::ScalarType signed_type(const Operation& op) {
  if (op.reduce.kind() == Kind::min || op.reduce.kind() == Kind::max) refuse(op);
  switch (size_of(op.dtype)) {
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

at::ScalarType c10d_type(const Operation& op) {
  switch (op.dtype) {
    case DType::boolean:
      return at::kByte;
    case DType::complex64:
      return at::kFloat;
    case DType::complex128:
      return at::kDouble;
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return signed_type(op);
    case DType::raw:
      refuse(op);
    default:
      return scalar_type_from(op.dtype);
  }
}

}  // namespace

C10dReduction c10d_reduction(const Operation& op, int ranks, bool has_avg) {
  C10dReduction reduction{.type = c10d_type(op),
                          .op = op.dtype == DType::boolean ? op_of_bools(op) : c10d_op(op),
                          .factor = op.reduce.factor()};
  if (op.reduce.kind() == Kind::avg) {
    if (has_avg) {
      reduction.op = C10dOp::AVG;
    } else {
      reduction.divisor = ranks;
    }
  }
  return reduction;
}

void C10dReduction::before(const at::Tensor& values) const {
  if (factor != 1) values.mul_(factor);
}

void C10dReduction::after(const at::Tensor& result) const {
  if (divisor != 1) result.div_(divisor);
}

}  // namespace cohort
