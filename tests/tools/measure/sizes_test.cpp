// SPDX-License-Identifier: BSD-3-Clause
#include "measure/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace {

using namespace cohort::measure;
using cohort::ValueError;
using testing::ElementsAre;

TEST(BenchSizes, AreReadAsNcclTestsReadsThem) {
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("100"), 100U);
  EXPECT_EQ(parse_size("4K"), 4096U);
  EXPECT_EQ(parse_size("4k"), 4096U);
  EXPECT_EQ(parse_size("16M"), 16U << 20U);
  EXPECT_EQ(parse_size("16MB"), 16U << 20U);
  EXPECT_EQ(parse_size("16MiB"), 16U << 20U);
  EXPECT_EQ(parse_size("2G"), std::size_t{2} << 30U);
}

TEST(BenchSizes, WhatIsNotASizeIsRefused) {
  for (const auto* const text :
       {"", "K", "-1", "1.5M", "1X", "1 K", "iB", "1iB", "99999999999999999999", "20000000000G"}) {
    EXPECT_ERROR(ValueError, parse_size(text), "is not a size");
  }
}

TEST(BenchSizes, AreWrittenWhole) {
  EXPECT_EQ(format_size(4), "4 B");
  EXPECT_EQ(format_size(1024), "1 KiB");
  EXPECT_EQ(format_size(1536), "1536 B");
  EXPECT_EQ(format_size(64U << 20U), "64 MiB");
}

TEST(BenchSweep, MultipliesUpToTheLargest) {
  EXPECT_THAT(sizes_of({.min = 4, .max = 64, .factor = 2}), ElementsAre(4, 8, 16, 32, 64));
  EXPECT_THAT(sizes_of({.min = 4, .max = 100, .factor = 4}), ElementsAre(4, 16, 64));
}

TEST(BenchSweep, AddsUpToTheLargest) {
  EXPECT_THAT(sizes_of({.min = 0, .max = 10, .step = 4}), ElementsAre(0, 4, 8));
  EXPECT_THAT(sizes_of({.min = 2, .max = 10, .step = 4}), ElementsAre(2, 6, 10));
}

TEST(BenchSweep, OneSizeNeedsNoStep) {
  EXPECT_THAT(sizes_of({.min = 32, .max = 32}), ElementsAre(32));
}

TEST(BenchSweep, EndsAtTheLargestNumberThereIs) {
  const auto largest = ~std::size_t{0};
  EXPECT_EQ(sizes_of({.min = largest / 2, .max = largest, .factor = 3}).size(), 1U);
  EXPECT_EQ(sizes_of({.min = largest - 1, .max = largest, .step = 4}).size(), 1U);
}

TEST(BenchSweep, WhatWouldNotEndIsRefused) {
  EXPECT_ERROR(ValueError, sizes_of({.min = 8, .max = 4, .factor = 2}), "above the largest");
  EXPECT_ERROR(ValueError, sizes_of({.min = 0, .max = 4, .factor = 2}), "cannot begin at 0");
  EXPECT_ERROR(ValueError, sizes_of({.min = 1, .max = 4}), "a factor above 1 or a step above 0");
}

}  // namespace
