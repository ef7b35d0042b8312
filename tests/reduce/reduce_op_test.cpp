// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/reduce_op.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <vector>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

using Kind = ReduceOp::Kind;

TEST(ReduceOpTest, IsASmallValue) {
  static_assert(ReduceOp() == ReduceOp::sum());
  static_assert(ReduceOp::avg().kind() == Kind::avg && ReduceOp::avg().factor() == 1);
  static_assert(ReduceOp::premul_sum(2).factor() == 2);
  const ReduceOp converted = Kind::max;
  EXPECT_EQ(converted, ReduceOp::max());
  EXPECT_NE(converted, ReduceOp::min());
  const ReduceOp copy = ReduceOp::premul_sum(0.25);
  EXPECT_EQ(copy.kind(), Kind::premul_sum);
  EXPECT_EQ(copy.factor(), 0.25);
}

TEST(ReduceOpTest, EqualityAndHashAreByKind) {
  EXPECT_EQ(ReduceOp::premul_sum(1), ReduceOp::premul_sum(2));
  EXPECT_EQ(ReduceOp::premul_sum(1), Kind::premul_sum);
  EXPECT_NE(ReduceOp::premul_sum(1), ReduceOp::sum());
  const std::unordered_set<ReduceOp> set = {ReduceOp::premul_sum(1), ReduceOp::premul_sum(2), ReduceOp::sum()};
  EXPECT_EQ(set.size(), 2U);
}

TEST(ReduceOpTest, PremulSumNeedsItsMaker) {
  EXPECT_ERROR(ValueError, ReduceOp{Kind::premul_sum}, "ReduceOp::premul_sum(factor)");
  EXPECT_ERROR(ValueError, ReduceOp{static_cast<Kind>(10)}, "10");
}

TEST(ReduceOpTest, AFactorOutOfMemory) {
  EXPECT_EQ(ReduceOp::premul_sum(std::array{0.1F}).factor(), static_cast<double>(0.1F));
  EXPECT_EQ(ReduceOp::premul_sum(std::array{0.1}).factor(), 0.1);
  const auto f16 = [](int bits) {
    return ReduceOp::premul_sum(std::array{Float16{static_cast<std::uint16_t>(bits)}}).factor();
  };
  EXPECT_EQ(f16(0x3E00), 1.5);
  EXPECT_EQ(f16(0x8001), -0x1p-24);
  EXPECT_EQ(f16(0x7BFF), 65504);
  EXPECT_EQ(f16(0xFC00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(f16(0x7C01)));
  const auto bf16 = [](int bits) {
    return ReduceOp::premul_sum(std::array{BFloat16{static_cast<std::uint16_t>(bits)}}).factor();
  };
  EXPECT_EQ(bf16(0x3FC0), 1.5);
  EXPECT_EQ(bf16(0x0001), 0x1p-133);
  EXPECT_EQ(bf16(0x7F80), std::numeric_limits<double>::infinity());

  EXPECT_ERROR(ValueError, ReduceOp::premul_sum(std::array{1.0, 2.0}), "one element, not 2");
  EXPECT_ERROR(ValueError, ReduceOp::premul_sum(std::array{1}), "not i32");
  const float there = 1;
  EXPECT_ERROR(ValueError, ReduceOp::premul_sum(ConstBuffer(&there, DType::f32, {1}, {}, "cuda:0")), "not on cuda:0");
}

TEST(ReduceOpTest, Names) {
  for (const auto* const name : {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"})
    EXPECT_EQ(to_string(parse_reduce_op(name)), name);
  EXPECT_EQ(parse_reduce_op("bxor"), ReduceOp::bxor());
  EXPECT_EQ(to_string(ReduceOp::premul_sum(2)), "premul_sum");
  EXPECT_ERROR(ValueError, parse_reduce_op("premul_sum"), "ReduceOp::premul_sum(factor)");
  EXPECT_ERROR(ValueError, parse_reduce_op("mean"),
               "unknown reduction \"mean\": sum, avg, product, min, max, band, bor, bxor");
  EXPECT_ERROR(ValueError, parse_reduce_op(""), "sum, avg");
  EXPECT_ERROR(TypeError, to_string(static_cast<Kind>(10)), "10");
}

TEST(ReduceOpTest, SerialisedItKeepsTheFactorToTheBit) {
  for (const auto op : {ReduceOp::sum(), ReduceOp::bxor()}) EXPECT_EQ(deserialize_reduce_op(serialize(op)), op);
  EXPECT_EQ(serialize(ReduceOp::max()), "max");
  EXPECT_EQ(serialize(ReduceOp::premul_sum(3)), "premul_sum:0x1.8p+1");
  using Limits = std::numeric_limits<double>;
  for (const double factor : {0.0, -0.0, 1.0, 0.1, -1.0 / 3, Limits::max(), Limits::min(), Limits::denorm_min(),
                              -Limits::infinity(), Limits::infinity()}) {
    const auto text = serialize(ReduceOp::premul_sum(factor));
    const auto back = deserialize_reduce_op(text);
    EXPECT_EQ(back, Kind::premul_sum);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back.factor()), std::bit_cast<std::uint64_t>(factor)) << text;
  }
  EXPECT_TRUE(std::isnan(deserialize_reduce_op(serialize(ReduceOp::premul_sum(Limits::quiet_NaN()))).factor()));
}

TEST(ReduceOpTest, MalformedTextIsRefused) {
  for (const auto* const text :
       {"", "summ", "sum:1", "premul_sum", "premul_sum:", "premul_sum:1.5", "premul_sum:0x", "premul_sum:0x1p+1 ",
        "premul_sum: 0x1p+1", "premul_sum:0x1p+99999", "premul_sum:--0x1p+1", "premul_sum:0x-1p+1", "premul_sum:0xinf",
        "premul_sum:0x1p+", "premul_sum:nan(1)", "premul_sum:0xp+1"})
    EXPECT_THROW(deserialize_reduce_op(text), ValueError) << text;
}

TEST(ReduceOpTest, WhatGoesWithWhichType) {
  using enum ReduceOp::Kind;
  struct Row {
    std::vector<DType> dtypes;
    std::vector<Kind> kinds;
  };
  for (const auto& [dtypes, kinds] :
       {Row{{DType::f16, DType::bf16, DType::f32, DType::f64}, {sum, avg, product, min, max, premul_sum}},
        Row{{DType::i8, DType::u8, DType::i16, DType::i32, DType::i64, DType::boolean, DType::u16, DType::u32,
             DType::u64},
            {sum, product, min, max, band, bor, bxor}},
        Row{{DType::complex64, DType::complex128}, {sum, avg, premul_sum}}, Row{{DType::raw}, {}}}) {
    for (const auto dtype : dtypes) {
      for (const auto kind : {sum, avg, product, min, max, band, bor, bxor, premul_sum}) {
        const auto op = kind == premul_sum ? ReduceOp::premul_sum(2) : ReduceOp(kind);
        const bool expected = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
        EXPECT_EQ(is_reducible(dtype, op), expected) << to_string(dtype) << " " << to_string(kind);
        if (expected) {
          EXPECT_NO_THROW(check_reducible(dtype, op));
        } else {
          EXPECT_ERROR(TypeError, check_reducible(dtype, op), std::string(to_string(dtype)));
        }
      }
    }
  }
  EXPECT_ERROR(TypeError, check_reducible(DType::i32, ReduceOp::avg()),
               "avg has no meaning for elements of type i32, which can be reduced by sum, product, min, max, band");
}

}  // namespace
}  // namespace cohort::test
