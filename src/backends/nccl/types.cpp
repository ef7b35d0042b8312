// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/types.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace cohort::nccl {

namespace {

using Kind = ReduceOp::Kind;

DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return DataType::float16;
    case DType::bf16:
      return DataType::bfloat16;
    case DType::f32:
    case DType::complex64:
      return DataType::float32;
    case DType::f64:
    case DType::complex128:
      return DataType::float64;
    case DType::i8:
      return DataType::int8;
    case DType::u8:
    case DType::boolean:
      return DataType::uint8;
    case DType::i32:
      return DataType::int32;
    case DType::i64:
      return DataType::int64;
    case DType::u32:
      return DataType::uint32;
    case DType::u64:
      return DataType::uint64;
    case DType::i16:
    case DType::u16:
    case DType::raw:
      break;
  }
  throw TypeError(fmt::format("NCCL does not reduce elements of type {}", to_string(dtype)));
}

RedOp op_of(DType dtype, const ReduceOp& op) {
  const bool is_bool = dtype == DType::boolean;
  switch (op.kind()) {
    case Kind::sum:
      return is_bool ? RedOp::max : RedOp::sum;  // or
    case Kind::product:
      return is_bool ? RedOp::min : RedOp::product;  // and
    case Kind::min:
      return RedOp::min;
    case Kind::max:
      return RedOp::max;
    case Kind::avg:
      return RedOp::avg;
    case Kind::premul_sum:
      return RedOp::sum;
    case Kind::band:
    case Kind::bor:
    case Kind::bxor:
      break;
    case Kind::user:
      throw NotSupportedError(fmt::format("reductions of your own ({}) are for host memory", to_string(op)));
  }
  throw ValueError(fmt::format("NCCL has no bitwise reductions: {}", to_string(op)));
}

/// Converts to any 16-bit binary format, rounding to nearest, ties to even.
std::uint16_t narrow(double value, int mantissa_bits) {
  const int exponent_mask = (1 << (15 - mantissa_bits)) - 1;
  const int bias = exponent_mask / 2;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::fabs(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | (exponent_mask << mantissa_bits) | (1 << (mantissa_bits - 1)));
  }
  int exponent = size == 0 ? 1 - bias : std::ilogb(std::isinf(size) ? 1.0 : size);
  exponent = std::max(exponent, 1 - bias);  // smaller values are subnormal
  const double scaled = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
  // Rounding up to the next power of two carries into the exponent by itself, and beyond the largest value into
  // infinity.
  const double one = std::ldexp(1.0, mantissa_bits);
  double bits = scaled + (exponent + bias - 1) * one;
  const double infinity = exponent_mask * one;
  if (std::isinf(size) || bits > infinity) bits = infinity;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(bits));
}

template <class T>
std::array<std::byte, 8> bytes_of(T value) {
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

}  // namespace

Reducing reducing(DType dtype, const ReduceOp& op) {
  const bool is_complex = dtype == DType::complex64 || dtype == DType::complex128;
  const auto type = type_of(dtype);
  return {.type = type, .per_element = is_complex ? 2U : 1U, .op = op_of(dtype, op)};
}

std::array<std::byte, 8> scalar(DataType type, double factor) {
  switch (type) {
    case DataType::float16:
      return bytes_of(narrow(factor, 10));
    case DataType::bfloat16:
      return bytes_of(narrow(factor, 7));
    case DataType::float32:
      return bytes_of(static_cast<float>(factor));
    case DataType::float64:
      return bytes_of(factor);
    default:
      throw TypeError("premul_sum needs a floating-point type");
  }
}

}  // namespace cohort::nccl
