// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/hash_store.h>
#include <cohort/prefix_store.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(PrefixStoreTest, KeysCarryThePrefix) {
  const auto inner = std::make_shared<HashStore>();
  PrefixStore store("p", inner);
  store.set("k", "v");
  EXPECT_EQ(inner->get("p/k"), "v");
  inner->set("p/other", "w");
  EXPECT_EQ(store.get("other"), "w");
  EXPECT_FALSE(inner->check({"k"}));
  EXPECT_EQ(store.prefix(), "p");
}

TEST(PrefixStoreTest, NestsAndUnwraps) {
  const auto inner = std::make_shared<HashStore>();
  const auto middle = std::make_shared<PrefixStore>("a", inner);
  PrefixStore outer("b", middle);
  outer.set("k", "v");
  EXPECT_EQ(inner->get("a/b/k"), "v");
  EXPECT_EQ(outer.underlying_store(), middle);
  EXPECT_EQ(outer.underlying_non_prefix_store(), inner);
}

TEST(PrefixStoreTest, CountsAllKeysAndSharesTheTimeout) {
  const auto inner = std::make_shared<HashStore>();
  PrefixStore store("p", inner);
  inner->set("outside", "");
  EXPECT_EQ(store.num_keys(), 1) << "a prefix does not filter";
  store.set_timeout(123ms);
  EXPECT_EQ(inner->timeout(), 123ms);
  inner->set_timeout(5s);
  EXPECT_EQ(store.timeout(), 5s);
}

TEST(PrefixStoreTest, CloneKeepsThePrefix) {
  const auto inner = std::make_shared<HashStore>();
  const auto store = std::make_shared<PrefixStore>("p", inner);
  store->clone()->set("k", "v");
  EXPECT_EQ(inner->get("p/k"), "v");
}

TEST(PrefixStoreTest, NullIsRefused) {
  EXPECT_ERROR(ValueError, PrefixStore("p", nullptr), "null");
}

}  // namespace
}  // namespace cohort::test
