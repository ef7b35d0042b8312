// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure_detector.h"

#include <cohort/hash_store.h>
#include <cohort/prefix_store.h>
#include <cohort/store_server.h>
#include <cohort/tcp_store.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <future>
#include <optional>
#include <vector>

#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class FailureDetectorTest : public ::testing::Test {
 protected:
  StorePtr store() const {
    return std::make_shared<PrefixStore>("group",
                                         std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = server->endpoint()}));
  }
  /// A rank in this process, and the failure it is told.
  struct Listener {
    std::promise<Failure> promise{};
    std::unique_ptr<FailureDetector> line{};
    Failure heard() {
      auto future = promise.get_future();
      if (future.wait_for(20s) != std::future_status::ready) return {.text = "nothing was heard"};
      return future.get();
    }
  };
  std::unique_ptr<Listener> listen(int rank) const {
    auto listener = std::make_unique<Listener>();
    listener->line =
        FailureDetector::start(store(), rank, 2, Deadline::after(10s),
                               [&promise = listener->promise](const Failure& failure) { promise.set_value(failure); });
    return listener;
  }

  std::vector<int> left() const {
    std::vector<int> ranks;
    for (const auto& each : FailureDetector::left(*store(), Deadline::after(10s))) ranks.push_back(each.rank);
    return ranks;
  }

  std::optional<StoreServer> server{std::in_place, StoreServerOptions{.endpoint = unique_unix_endpoint()}};
};

TEST_F(FailureDetectorTest, AKilledProcessIsKnownToTheOthersByItsRank) {
  Process rank_3([&] {
    const auto line = FailureDetector::start(store(), 3, 4, Deadline::after(10s), [](const Failure&) {});
    store()->set("tied", "");
    ::pause();
    return 0;
  });
  const auto other = listen(1);
  store()->wait({"tied"}, 20s);
  rank_3.signal(SIGKILL);
  const auto failure = other->heard();
  EXPECT_EQ(failure.kind, ErrorKind::peer_lost);
  EXPECT_EQ(failure.rank, 3);
  EXPECT_THAT(failure.text, HasSubstr("rank 3 is gone"));
}

TEST_F(FailureDetectorTest, WhoLeavesInAnOrderlyWayIsNotMissed) {
  const auto stays = listen(0);
  listen(1).reset();
  stays->line->declare({.kind = ErrorKind::aborted, .rank = 0, .text = "something later"});
  EXPECT_EQ(stays->heard().text, "something later");
}

TEST_F(FailureDetectorTest, WhoHasLeftIsKnownUntilAllHave) {
  auto a = listen(0);
  auto b = listen(1);
  const auto keys = store();
  EXPECT_THAT(left(), ::testing::IsEmpty());
  b.reset();
  EXPECT_THAT(left(), ::testing::ElementsAre(1));
  a.reset();
  EXPECT_EQ(keys->num_keys(), 0) << "the last one to leave deletes the keys";
}

TEST_F(FailureDetectorTest, WhatUnwoundARankIsKnown) {
  try {
    const auto rank = listen(1);
    throw ValueError("three elements,\nnot two");
  } catch (const ValueError&) {
    const auto departures = FailureDetector::left(*store(), Deadline::after(10s));
    ASSERT_EQ(departures.size(), 1);
    EXPECT_EQ(departures[0].failure().text, "rank 1 has left the group; its last error was: three elements, not two");
  }
}

TEST_F(FailureDetectorTest, WhoExitsHasLeft) {
  Process rank_3([&]() -> int {
    const auto line = FailureDetector::start(store(), 3, 4, Deadline::after(10s), [](const Failure&) {});
    std::exit(0);
  });
  EXPECT_EQ(rank_3.wait(), 0);
  EXPECT_THAT(left(), ::testing::ElementsAre(3));
  EXPECT_FALSE(store()->check({"ended"})) << "its last will was withdrawn";
}

TEST_F(FailureDetectorTest, TheFirstWordStands) {
  const auto a = listen(0);
  const auto b = listen(1);
  a->line->declare({.kind = ErrorKind::timeout, .rank = 7, .text = "first, of several words"});
  b->line->declare({.kind = ErrorKind::aborted, .rank = 1, .text = "second"});
  for (auto* const each : {a.get(), b.get()}) {
    const auto failure = each->heard();
    EXPECT_EQ(failure.kind, ErrorKind::timeout);
    EXPECT_EQ(failure.rank, 7);
    EXPECT_EQ(failure.text, "first, of several words");
  }
}

TEST_F(FailureDetectorTest, AStoreThatIsGoneIsAnEndToo) {
  const auto rank = listen(0);
  server.reset();
  const auto failure = rank->heard();
  EXPECT_EQ(failure.kind, ErrorKind::peer_lost);
  EXPECT_THAT(failure.text, HasSubstr("store cannot be reached"));
}

TEST_F(FailureDetectorTest, OnlyAStoreThatCanTellIsTiedTo) {
  EXPECT_EQ(FailureDetector::start(std::make_shared<HashStore>(), 0, 2, Deadline::after(1s), [](const Failure&) {}),
            nullptr);
}

}  // namespace
}  // namespace cohort::test
