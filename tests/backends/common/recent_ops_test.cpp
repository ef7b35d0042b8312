// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/recent_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "backends/common/stall_watch.h"

namespace cohort::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

OpSignature broadcast_from(int root) {
  return {.op = OpType::broadcast, .dtype = DType::f32, .root = root, .bytes = 16};
}

OpNote note_of(int rank, const std::vector<OpSignature>& called) {
  RecentOps ops;
  std::uint64_t sequence = 0;
  for (const auto& each : called) {
    ops.exit(ops.enter(each, ++sequence));
  }
  return OpNote::parse(ops.note(rank));
}

TEST(RecentOpsTest, ANoteSaysWhoIsWhere) {
  RecentOps ops;
  EXPECT_EQ(ops.current(), 0U);
  EXPECT_TRUE(OpNote::parse(ops.note(3)).ops.empty());
  ops.enter(broadcast_from(1), 7);
  EXPECT_EQ(ops.current(), 1U);
  const auto in = OpNote::parse(ops.note(3));
  EXPECT_EQ(in.rank, 3);
  EXPECT_TRUE(in.is_in);
  EXPECT_EQ(in.newest(), 1U);
  EXPECT_EQ(in.ops.at(1).text, "broadcast(f32, 16 bytes, root 1) #7");
  ops.exit(1);
  EXPECT_EQ(ops.current(), 0U);
  EXPECT_FALSE(OpNote::parse(ops.note(3)).is_in);
}

TEST(RecentOpsTest, TextThatIsNoNoteIsAnEmptyOne) {
  for (const auto* const text : {"", "in", "out x", "\n\n", "in 1\n\nx y z"}) {
    EXPECT_FALSE(first_mismatch(std::array{OpNote::parse(text)})) << text;
  }
}

TEST(RecentOpsTest, TheFirstOperationThatDiffersIsNamed) {
  const auto a = broadcast_from(0);
  const auto b = broadcast_from(1);
  // Rank 0 is ahead; what it called under the same number counts.
  const std::array notes{note_of(0, {a, a, a, b}), note_of(1, {a, a}), note_of(2, {a, b})};
  const auto mismatch = first_mismatch(notes);
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->kind, ErrorKind::mismatch);
  EXPECT_EQ(mismatch->rank, 2);
  EXPECT_THAT(mismatch->text, AllOf(HasSubstr("rank 2 called broadcast(f32, 16 bytes, root 1) #2"),
                                    HasSubstr("rank 0 called broadcast(f32, 16 bytes, root 0) #2")));
}

TEST(RecentOpsTest, RanksThatAreNotEquallyFarAgree) {
  const auto a = broadcast_from(0);
  const std::vector<OpSignature> many(100, a);
  EXPECT_FALSE(first_mismatch(std::array{note_of(0, many), note_of(1, {many.begin(), many.end() - 3})}));
  EXPECT_FALSE(first_mismatch(std::array{note_of(0, many), note_of(1, {a})})) << "too far apart to compare";
}

TEST(RecentOpsTest, ManyThatAreUnderWayAreComparedFromTheFirstThatHasNotEnded) {
  const auto a = broadcast_from(0);
  const auto b = broadcast_from(1);
  const auto note_of_device = [&](int rank, const OpSignature& odd, std::uint64_t ended) {
    RecentOps ops;
    for (std::uint64_t number = 1; number <= 500; ++number)
      EXPECT_EQ(ops.enter(number == 100 ? odd : a, number), number);
    ops.exit(ended);
    EXPECT_EQ(ops.current(), ended + 1);
    return OpNote::parse(ops.note(rank));
  };
  // Both have enqueued 400 more behind the one that differs; for rank 1 it ended, as a broadcast does for its root.
  const std::array notes{note_of_device(0, a, 99), note_of_device(1, b, 103)};
  const auto mismatch = first_mismatch(notes);
  ASSERT_TRUE(mismatch);
  EXPECT_THAT(mismatch->text, HasSubstr("broadcast(f32, 16 bytes, root 1) #100"));
  EXPECT_EQ(notes[0].ops.begin()->first, 93U) << "a note is short";
  EXPECT_EQ(notes[0].newest(), 107U);
}

TEST(StallWatchTest, CallsOncePerOperationThatLasts) {
  std::atomic<std::uint64_t> current{0};
  std::atomic<int> calls{0};
  std::promise<void> first;
  std::promise<void> second;
  const StallWatch watch([&] { return current.load(); },
                         [&] {
                           const auto number = ++calls;
                           if (number == 1) first.set_value();
                           if (number == 2) second.set_value();
                         });
  const auto patience = std::chrono::seconds(60);
  current = 1;
  ASSERT_EQ(first.get_future().wait_for(patience), std::future_status::ready);
  current = 2;
  ASSERT_EQ(second.get_future().wait_for(patience), std::future_status::ready);
  EXPECT_EQ(calls, 2) << "once for each";
}

}  // namespace
}  // namespace cohort::test
