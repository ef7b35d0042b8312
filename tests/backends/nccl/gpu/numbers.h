// SPDX-License-Identifier: BSD-3-Clause
//
// Small whole numbers as elements of any type: the result is exact in whatever order NCCL combines them.
#pragma once

#include <cohort/dtype.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "reduce/reference.h"

namespace cohort::test {

/// A complex number gets the value in both parts.
inline std::vector<std::uint8_t> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::uint8_t> bytes;
  const auto put = [&](auto value) {
    const auto at = bytes.size();
    bytes.resize(at + sizeof(value));
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  };
  for (const double value : values) {
    switch (dtype) {
      case DType::f16:
        put(to_half(static_cast<float>(value), 10));
        break;
      case DType::bf16:
        put(to_half(static_cast<float>(value), 7));
        break;
      case DType::f32:
        put(static_cast<float>(value));
        break;
      case DType::f64:
        put(value);
        break;
      case DType::i8:
        put(static_cast<std::int8_t>(value));
        break;
      case DType::u8:
        put(static_cast<std::uint8_t>(value));
        break;
      case DType::boolean:
        put(static_cast<std::uint8_t>(value != 0));
        break;
      case DType::i16:
        put(static_cast<std::int16_t>(value));
        break;
      case DType::i32:
        put(static_cast<std::int32_t>(value));
        break;
      case DType::i64:
        put(static_cast<std::int64_t>(value));
        break;
      case DType::u16:
        put(static_cast<std::uint16_t>(value));
        break;
      case DType::u32:
        put(static_cast<std::uint32_t>(value));
        break;
      case DType::u64:
        put(static_cast<std::uint64_t>(value));
        break;
      case DType::raw:
        put(static_cast<std::uint8_t>(value));
        break;
      case DType::complex64:
        put(static_cast<float>(value));
        put(static_cast<float>(value));
        break;
      case DType::complex128:
        put(value);
        put(value);
        break;
    }
  }
  return bytes;
}

/// What `rank` contributes: 0, 1 or 2, depending on the place.
inline double number(int rank, std::size_t place) {
  return static_cast<double>((static_cast<std::size_t>(rank) * 7 + place) % 3);
}
inline std::vector<double> numbers(int rank, std::size_t count) {
  std::vector<double> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(number(rank, i));
  return all;
}

}  // namespace cohort::test
