// SPDX-License-Identifier: BSD-3-Clause
#include "store/table.h"

#include <gtest/gtest.h>

namespace cohort::test {
namespace {

TEST(TableTest, WaiterFiresOnceAllAreThere) {
  Table table;
  int fired = 0;
  Table::Waiter waiter([&] { ++fired; });
  EXPECT_FALSE(table.wait({"a", "b"}, false, waiter));
  table.set("a", "");
  table.erase("a");
  table.set("b", "");
  EXPECT_EQ(fired, 0) << "a is gone again";
  table.set("a", "");
  EXPECT_EQ(fired, 1);
  table.set("a", "again");
  EXPECT_EQ(fired, 1);
}

TEST(TableTest, AWaiterMayLookAtTheTable) {
  Table table;
  std::string seen;
  Table::Waiter waiter([&] { seen = *table.find("k"); });
  table.wait({"k"}, true, waiter);
  table.set("k", "v");
  EXPECT_EQ(seen, "v");
}

TEST(TableTest, ForgottenWaitersLeaveNothing) {
  Table table;
  {
    Table::Waiter waiter([] { FAIL(); });
    table.wait({"a", "b", "a"}, false, waiter);
    EXPECT_EQ(table.size(), 0U) << "a key that is waited for is not a key that is there";
    table.forget(waiter);
    table.forget(waiter);
  }
  table.set("a", "");
  table.set("b", "");
  table.erase("a");
  table.erase("b");
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.bytes(), 0U);
}

TEST(TableTest, BytesAreWhatIsThere) {
  Table table;
  table.set("key", std::string(100, 'x'));
  const auto one = table.bytes();
  EXPECT_GE(one, 103U);
  table.set("key", "short");
  EXPECT_EQ(table.bytes(), one - 95);
  table.append("key", "12345");
  EXPECT_EQ(table.bytes(), one - 90);
  table.queue_push("key", std::string(50, 'y'));
  table.queue_pop("key");
  EXPECT_EQ(table.bytes(), one - 90);
  table.queue_push("q", "z");
  table.erase("q");
  table.erase("key");
  EXPECT_EQ(table.bytes(), 0U);
}

TEST(TableTest, PoppersTakeTurns) {
  Table table;
  std::string got;
  Table::Popper first([&](const std::string& value) { got += "1" + value; });
  Table::Popper second([&](const std::string& value) { got += "2" + value; });
  table.wait_pop("q", first);
  table.wait_pop("q", second);
  table.queue_push("q", "a");
  table.queue_push("q", "b");
  table.queue_push("q", "c");
  EXPECT_EQ(got, "1a2b");
  EXPECT_EQ(table.queue_len("q"), 1U);
}

TEST(TableTest, AQueueIsNoValueToThoseWhoWantOne) {
  Table table;
  int fired = 0;
  Table::Waiter waiter([&] { ++fired; });
  table.wait({"k"}, true, waiter);
  table.queue_push("k", "");
  EXPECT_EQ(fired, 0);
  table.set("k", "");
  EXPECT_EQ(fired, 1);
}

}  // namespace
}  // namespace cohort::test
