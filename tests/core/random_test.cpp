// SPDX-License-Identifier: BSD-3-Clause
#include "core/random.h"

#include "support/ranks.h"

namespace cohort::test {
namespace {

TEST(RandomTest, AChildHasItsOwnNonce) {
  const auto parent = process_nonce();
  as_processes(1, [&](int) {
    EXPECT_NE(process_nonce(), parent);
    EXPECT_EQ(process_nonce(), process_nonce());
    return 0;
  });
  EXPECT_EQ(process_nonce(), parent);
}

}  // namespace
}  // namespace cohort::test
