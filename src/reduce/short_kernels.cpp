// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <cstring>

#include "reduce/kernels.h"

namespace cohort::reduce {

namespace {

template <class T>
void sum(const Sources& sources, const Outputs& outputs, std::size_t elements, double /*divisor*/) {
  const auto load = [](const void* from, std::size_t i) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof(T), sizeof(T));
    return value;
  };
  for (std::size_t i = 0; i < elements; ++i) {
    T value = load(sources.data[0], i);
    for (std::size_t k = 1; k < sources.count; ++k) value += load(sources.data[k], i);
    for (std::size_t k = 0; k < outputs.count; ++k) {
      std::memcpy(static_cast<std::byte*>(outputs.data[k]) + i * sizeof(T), &value, sizeof(T));
    }
  }
}

}  // namespace

Kernel find_short_kernel(DType dtype, ReduceOp::Kind kind) {
  if (kind != ReduceOp::Kind::sum) return nullptr;
  switch (dtype) {
    case DType::f32:
      return sum<float>;
    case DType::f64:
      return sum<double>;
    // Unsigned, because signed sums must not overflow; the bits are the same.
    case DType::i32:
    case DType::u32:
      return sum<std::uint32_t>;
    case DType::i64:
    case DType::u64:
      return sum<std::uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace cohort::reduce
