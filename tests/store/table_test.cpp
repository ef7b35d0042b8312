// SPDX-License-Identifier: BSD-3-Clause
#include "store/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Executes requests on a table and keeps the replies as text.
class Client {
 public:
  explicit Client(Table& table)
      : caller(table, [this](const wire::Reply& reply) {
          std::string text = reply.status == wire::Status::cancelled ? "cancelled" : std::to_string(reply.number);
          for (const auto value : reply.values) text += ":" + std::string(value);
          replies.push_back(text);
        }) {}

  void set(std::string_view key, std::string_view value) {
    caller.execute({.op = StoreOp::set, .keys = {key}, .values = {value}});
  }
  void push(std::string_view key, std::string_view value) {
    caller.execute({.op = StoreOp::queue_push, .keys = {key}, .values = {value}});
  }
  void execute(StoreOp op, std::vector<std::string_view> on) { caller.execute({.op = op, .keys = std::move(on)}); }

  std::vector<std::string> replies;
  Table::Caller caller;
};

class TableTest : public ::testing::Test {
 protected:
  Table table;
  Client client{table};  ///< never waits
  Client waiter{table};
};

TEST_F(TableTest, AWaitIsAnsweredOnceAllKeysExist) {
  waiter.execute(StoreOp::wait, {"a", "b"});
  client.set("a", "");
  client.execute(StoreOp::delete_key, {"a"});
  client.set("b", "");
  EXPECT_TRUE(waiter.caller.is_waiting()) << "a is gone again";
  EXPECT_THAT(waiter.replies, IsEmpty());
  client.set("a", "");
  EXPECT_FALSE(waiter.caller.is_waiting());
  EXPECT_THAT(waiter.replies, ElementsAre("0"));
  client.set("a", "again");
  EXPECT_THAT(waiter.replies, ElementsAre("0"));
}

TEST_F(TableTest, AGetIsAnsweredWithTheValuesInTheOrderAsked) {
  waiter.execute(StoreOp::get, {"b", "a", "b"});
  client.set("a", "1");
  client.set("b", "2");
  EXPECT_THAT(waiter.replies, ElementsAre("0:2:1:2"));
  waiter.execute(StoreOp::get, {"a"});
  EXPECT_THAT(waiter.replies, ElementsAre("0:2:1:2", "0:1"));
}

TEST_F(TableTest, CancelNamesTheMissingKeys) {
  client.set("a", "");
  waiter.execute(StoreOp::wait, {"a", "b"});
  waiter.caller.cancel();
  waiter.caller.cancel();
  EXPECT_THAT(waiter.replies, ElementsAre("cancelled:b"));
  client.set("b", "");
  EXPECT_EQ(waiter.replies.size(), 1U);
}

TEST_F(TableTest, WithdrawnCallersLeaveNothing) {
  {
    Client gone(table);
    gone.execute(StoreOp::wait, {"a", "b", "a"});
    EXPECT_EQ(table.size(), 0U) << "a key that is waited for is not a key that is there";
    gone.caller.withdraw();
    gone.caller.withdraw();
    gone.execute(StoreOp::queue_pop, {"a"});
  }
  client.set("a", "");
  client.set("b", "");
  client.execute(StoreOp::delete_key, {"a"});
  client.execute(StoreOp::delete_key, {"b"});
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.bytes(), 0U);
}

TEST_F(TableTest, BytesAreWhatIsThere) {
  client.set("key", std::string(100, 'x'));
  const auto one = table.bytes();
  EXPECT_GE(one, 103U);
  client.set("key", "short");
  EXPECT_EQ(table.bytes(), one - 95);
  client.caller.execute({.op = StoreOp::append, .keys = {"key"}, .values = {"12345"}});
  EXPECT_EQ(table.bytes(), one - 90);
  client.push("key", std::string(50, 'y'));
  client.execute(StoreOp::queue_pop, {"key"});
  EXPECT_EQ(table.bytes(), one - 90);
  client.push("q", "z");
  client.execute(StoreOp::delete_key, {"q"});
  client.execute(StoreOp::delete_key, {"key"});
  EXPECT_EQ(table.bytes(), 0U);
}

TEST_F(TableTest, PoppersTakeTurns) {
  Client second(table);
  waiter.execute(StoreOp::queue_pop, {"q"});
  second.execute(StoreOp::queue_pop, {"q"});
  client.push("q", "a");
  client.push("q", "b");
  client.push("q", "c");
  EXPECT_THAT(waiter.replies, ElementsAre("0:a"));
  EXPECT_THAT(second.replies, ElementsAre("0:b"));
  client.execute(StoreOp::queue_len, {"q"});
  EXPECT_EQ(client.replies.back(), "1");
}

TEST_F(TableTest, APoppedValueCanBeMoved) {
  std::string taken;
  Table::Caller taker(table, [&](const wire::Reply& reply) { taken = std::move(*reply.popped); });
  taker.execute({.op = StoreOp::queue_pop, .keys = {"q"}});
  client.push("q", "while it waits");
  EXPECT_EQ(taken, "while it waits");
  client.push("q", "before it asks");
  taker.execute({.op = StoreOp::queue_pop, .keys = {"q"}});
  EXPECT_EQ(taken, "before it asks");
}

TEST_F(TableTest, AQueueIsNoValueToThoseWhoWantOne) {
  waiter.execute(StoreOp::get, {"k"});
  client.push("k", "");
  EXPECT_THAT(waiter.replies, IsEmpty());
  client.set("k", "v");
  EXPECT_THAT(waiter.replies, ElementsAre("0:v"));
}

}  // namespace
}  // namespace cohort::test
