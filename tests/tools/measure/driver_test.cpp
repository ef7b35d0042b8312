// SPDX-License-Identifier: BSD-3-Clause
#include "measure/driver.h"

#include <cohort/error.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(Driver, FailsSoonAfterOneOfItsRanks) {
  const auto start = std::chrono::steady_clock::now();
  Process driver([] {
    return bench::drive(3, bench::RanksAre::processes, [](int rank) -> std::unique_ptr<bench::System> {
      if (rank == 2) throw Error("no such engine");
      for (;;) ::pause();  // as one that waits for the rank that will never come
    });
  });
  EXPECT_EQ(driver.wait(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

}  // namespace
}  // namespace cohort::test
