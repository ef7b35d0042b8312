// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/reductions.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "reduce/reference.h"

namespace cohort::test {
namespace {

TEST(MpiHalves, AreWidenedExactly) {
  for (const auto& [dtype, mantissa] : {std::pair{DType::f16, 10}, std::pair{DType::bf16, 7}}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    std::vector<float> floats(halves.size());
    mpi::widen(dtype, halves.data(), floats.data(), halves.size());
    auto back = halves;
    mpi::narrow(dtype, floats.data(), back.data(), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto expected = from_half(halves[i], mantissa);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(from_half(back[i], mantissa))) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), std::bit_cast<std::uint32_t>(expected)) << i;
        ASSERT_EQ(back[i], halves[i]);
      }
    }
  }
}

TEST(MpiHalves, AreRoundedToNearestEven) {
  std::uint64_t state = 1;
  const auto random = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state >> 32U);
  };
  for (const auto& [dtype, mantissa] : {std::pair{DType::f16, 10}, std::pair{DType::bf16, 7}}) {
    for (int i = 0; i < 200'000; ++i) {
      // Arbitrary bits; half of the values are near the range of f16, and some lie exactly between two halves.
      auto bits = random();
      if (i % 2 == 0) bits = (bits & 0x8FFFFFFFU) | 0x30000000U;
      if (i % 3 == 0) bits &= dtype == DType::f16 ? 0xFFFFF000U : 0xFFFF8000U;
      const auto value = std::bit_cast<float>(bits);
      std::uint16_t half = 0;
      mpi::narrow(dtype, &value, &half, 1);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(from_half(half, mantissa)));
      } else {
        ASSERT_EQ(half, to_half(value, mantissa)) << value;
      }
    }
  }
}

}  // namespace
}  // namespace cohort::test
