// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/half_conversion.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace cohort::mpi {

namespace {

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

float from_float16(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7FFFU;
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  // Exponents' biases differ by 112; the multiplication does it for subnormal numbers as well. Infinity and NaN keep
  // an exponent of all ones.
  const float scaled = std::bit_cast<float>(magnitude << 13U) * 0x1p112F;
  const std::uint32_t special = magnitude >= 0x7C00U ? 0x7F800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Subnormal as a half: adding 0.5 leaves the number in units of 2^-24, rounded by the adder.
    const auto sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3F000000U));
  }
  const std::uint32_t odd = (magnitude >> 13U) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13U));
}

template <class Function>
void widen_each(const void* halves, float* floats, std::size_t count, Function function) {
  const auto* from = static_cast<const std::byte*>(halves);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    floats[i] = function(bits);
  }
}

template <class Function>
void narrow_each(const float* floats, void* halves, std::size_t count, Function function) {
  auto* to = static_cast<std::byte*>(halves);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = function(floats[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

}  // namespace

void widen(DType dtype, const void* halves, float* floats, std::size_t count) {
  dtype == DType::f16 ? widen_each(halves, floats, count, from_float16)
                      : widen_each(halves, floats, count, from_bfloat16);
}

void narrow(DType dtype, const float* floats, void* halves, std::size_t count) {
  dtype == DType::f16 ? narrow_each(floats, halves, count, to_float16)
                      : narrow_each(floats, halves, count, to_bfloat16);
}

}  // namespace cohort::mpi
