// SPDX-License-Identifier: BSD-3-Clause
// What a rank posts, the other ranks read; and all of them are told if they have posted different operations.
#include "backends/shm/protocol/posts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>

#include "backends/shm/collectives/collective.h"
#include "backends/shm/engines.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using shm::Collective;
using shm::Engine;
using shm::PostedPieces;

TEST(ShmPostsTest, EachRankReadsWhatTheOthersSayBesideTheirSignatures) {
  with_engines(3, [](Engine& engine) {
    const auto rank = engine.rank();
    for (std::uint64_t round = 1; round <= 4; ++round) {
      Call call(OpType::barrier, round, 60s);
      Collective factors(engine, Operation::barrier(), call);
      factors.post({.factor = rank - 0.25});
      factors.await_all();
      for (int each = 0; each < 3; ++each) EXPECT_EQ(factors.detail_of(each).factor, each - 0.25);

      Collective ways(engine, Operation::barrier(), call);
      ways.post({.way = rank == 0 ? shm::AutoTuner::Way::read : shm::AutoTuner::Way::staged});
      ways.await_all();
      EXPECT_EQ(ways.detail_of(0).way, shm::AutoTuner::Way::read);

      Collective pieces(engine, Operation::barrier(), call);
      const auto are = rank == 2 ? PostedPieces::Are::absent : PostedPieces::Are::even;
      pieces.post({.pieces = {.are = are, .bytes = static_cast<std::uint32_t>(16'000 + rank)}});
      pieces.await_all();
      EXPECT_EQ(pieces.detail_of(1).pieces.are, PostedPieces::Are::even);
      EXPECT_EQ(pieces.detail_of(1).pieces.bytes, 16'001U);
      EXPECT_EQ(pieces.detail_of(2).pieces.are, PostedPieces::Are::absent);
    }
  });
}

TEST(ShmPostsTest, ASmallPayloadLiesInTheLineOfTheFlag) {
  with_engines(2, [](Engine& engine) {
    Call call(OpType::barrier, 1, 60s);
    Collective collective(engine, Operation::barrier(), call);
    const auto* const line = reinterpret_cast<const std::byte*>(&engine.board().post(engine.rank(), 1));
    const auto distance = [&](std::size_t bytes) { return collective.payload(bytes) - line; };
    EXPECT_EQ(distance(32) + 32, 64);
    EXPECT_EQ(distance(33), 64);
    collective.post();
    collective.await_all();
  });
}

TEST(ShmPostsTest, PayloadsOfEverySizeArrive) {
  with_engines(3, [](Engine& engine) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{32}, std::size_t{33}, shm::post_bytes}) {
      Call call(OpType::barrier, bytes, 60s);
      Collective collective(engine, Operation::barrier(), call);
      const auto mine = gift(engine.rank(), 0, bytes);
      std::copy(mine.begin(), mine.end(), collective.payload(bytes));
      collective.post();
      collective.await_all();
      for (int each = 0; each < 3; ++each) {
        const auto* const theirs = collective.payload_of(each, bytes);
        EXPECT_EQ(std::vector<std::byte>(theirs, theirs + bytes), gift(each, 0, bytes)) << bytes;
      }
    }
  });
}

TEST(ShmPostsTest, WhereMemoryLiesMayDiffer) {
  with_engines(3, [](Engine& engine) {
    Call call(OpType::barrier, 1, 60s);
    Collective collective(engine, Operation::barrier(), call);
    collective.publish(engine.rank() == 1);
    collective.await_all();
    EXPECT_FALSE(collective.is_reachable(0));
    EXPECT_TRUE(collective.is_reachable(1));
    EXPECT_FALSE(collective.all_reachable());
  });
}

TEST(ShmPostsTest, RanksThatPostDifferentOperationsAllThrow) {
  with_engines(3, [](Engine& engine) {
    std::byte data{};
    const auto op = engine.rank() == 2 ? Operation::broadcast({&data, 1}, 1) : Operation::barrier();
    Call call(op.type, 1, 60s);
    Collective collective(engine, op, call);
    collective.post();
    const auto text = message_of<MismatchError>([&] { collective.await_all(); });
    EXPECT_THAT(text, ::testing::HasSubstr("barrier()"));
    EXPECT_THAT(text, ::testing::HasSubstr("broadcast(u8, 1 bytes, root 1)"));
  });
}

TEST(ShmPostsTest, PartsOfDifferentOperationsAreToldApart) {
  with_engines(2, [](Engine& engine) {
    Call call(OpType::barrier, 1, 60s);
    call.set_whole(static_cast<std::uint32_t>(1 + engine.rank()));
    Collective collective(engine, Operation::barrier(), call);
    collective.post();
    EXPECT_ERROR(MismatchError, collective.await_all(), "as parts of operations that differ");
  });
}

TEST(ShmPostsTest, ARankThatPostsNothingIsNamedAtTheDeadline) {
  std::latch has_given_up{2};
  with_engines(3, [&](Engine& engine) {
    if (engine.rank() == 1) return has_given_up.wait();
    Call call(OpType::barrier, 7, 50ms);
    Collective collective(engine, Operation::barrier(), call);
    collective.post();
    EXPECT_ERROR(OperationTimeoutError, collective.await_all(), "missing: rank 1; rank 1 has not called any operation");
    has_given_up.count_down();
  });
}

}  // namespace
}  // namespace cohort::test
