// SPDX-License-Identifier: BSD-3-Clause
//
// Which timeout applies, and how the error names the missing ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "group/breakable_ranks.h"
#include "group/gate.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Timeouts : public ::testing::TestWithParam<Ranks> {};

TEST_P(Timeouts, OfACallHoldsInsteadOfTheGroups) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(3);
    group->all_reduce(x);
    if (group->rank() == 0) {
      const auto took =
          time_of([&] { EXPECT_ERROR(OperationTimeoutError, group->all_reduce(x, {.timeout = 200ms}), "200 ms"); });
      EXPECT_GE(took, 199ms);
      EXPECT_LT(took, 200ms + grace);
    }
    meet(group, "end");
  });
}

TEST_P(Timeouts, OfAnAsynchronousCall) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(3);
    group->all_reduce(x);
    if (group->rank() == 0) {
      const auto work = group->all_reduce(x, {.async_op = true, .timeout = 200ms});
      const auto behind = group->barrier({.async_op = true});
      const auto took = time_of([&] { EXPECT_ERROR(OperationTimeoutError, work.wait(), "200 ms"); });
      EXPECT_LT(took, 200ms + grace);
      EXPECT_ERROR(OperationTimeoutError, work.wait(), "200 ms");
      EXPECT_ERROR(OperationTimeoutError, behind.wait(), "all_reduce #2");
    }
    meet(group, "end");
  });
}

TEST_P(Timeouts, OfTheGroupHoldsWhereTheCallSaysNothing) {
  run_breakable(
      GetParam(),
      [](const ProcessGroupPtr& group) {
        if (group->rank() == 0) {
          const auto took = time_of([&] { EXPECT_ERROR(OperationTimeoutError, group->barrier(), "1500 ms"); });
          EXPECT_GE(took, 1499ms);
          EXPECT_LT(took, 1500ms + grace);
        }
        meet(group, "end");
      },
      1500ms);
}

TEST_P(Timeouts, SetTimeoutIsForLaterOperations) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    if (group->rank() == 0) {
      const auto before = group->all_reduce(x, {.async_op = true});  // with the group's original timeout
      group->set_timeout(150ms);
      EXPECT_EQ(group->timeout(), 150ms);
      EXPECT_ERROR(OperationTimeoutError, before.wait(400ms), "the operation continues");
      say(group, "waited");
      before.wait();
      EXPECT_EQ(x[0], group->size());
      const auto took = time_of([&] { EXPECT_ERROR(OperationTimeoutError, group->barrier(), "150 ms"); });
      EXPECT_GE(took, 149ms);
      EXPECT_LT(took, 150ms + grace);
    } else {
      await(group, "waited");
      group->all_reduce(x);
      EXPECT_EQ(group->timeout(), patient) << "it is this rank's own";
    }
    meet(group, "end");
  });
}

TEST_P(Timeouts, SayWhoIsMissingAndWhatItDidLast) {
  auto ranks = GetParam();
  ranks.size = 3;
  run_breakable(ranks, [](const ProcessGroupPtr& group) {
    std::vector<int> x(5);
    group->barrier();
    group->broadcast(x, {.root = 2});
    std::string expected_op = "all_reduce";
    if (group->rank() != 1) {
      try {
        group->all_reduce(x, {.timeout = group->rank() == 0 ? 300ms : 60s});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const OperationTimeoutError& e) {
        EXPECT_THAT(e.what(), AllOf(HasSubstr("all_reduce #3"), HasSubstr("300 ms"), HasSubstr("missing: rank 1;"),
                                    HasSubstr("rank 1 last called broadcast"), HasSubstr("#2"),
                                    ::testing::Not(HasSubstr("rank 2 last"))));
        EXPECT_EQ(e.kind(), ErrorKind::timeout);
        EXPECT_EQ(e.context().op, "all_reduce");
        EXPECT_EQ(e.context().sequence, 3U);
        EXPECT_EQ(e.context().group, group->id());
        EXPECT_EQ(e.context().rank, 1) << "the rank at fault";
      }
    }
    meet(group, "broken");
    // From now on operations fail at once with the same cause, also on the rank that was late.
    const auto took = time_of([&] {
      EXPECT_ERROR(OperationTimeoutError, group->all_reduce(x), "missing: rank 1");
      EXPECT_ERROR(OperationTimeoutError, group->barrier({.async_op = true}).wait(), "all_reduce #3");
      EXPECT_ERROR(OperationTimeoutError, group->send(x, (group->rank() + 1) % 3), "missing: rank 1");
      EXPECT_ERROR(OperationTimeoutError, group->recv(x, (group->rank() + 1) % 3), "missing: rank 1");
      EXPECT_ERROR(OperationTimeoutError, group->split_group({0, 1}), "missing: rank 1");
      EXPECT_ERROR(OperationTimeoutError, group->all_gather_bytes("x"), "missing: rank 1");
    });
    EXPECT_LT(took, grace);
    meet(group, "end");
  });
}

TEST_P(Timeouts, NameAllMissingRanksAndThoseThatNeverCame) {
  auto ranks = GetParam();
  ranks.size = 4;
  run_breakable(ranks, [](const ProcessGroupPtr& group) {
    if (group->rank() == 3) {
      EXPECT_ERROR(OperationTimeoutError, group->barrier({.timeout = 200ms}), "missing: ranks 0, 1, 2");
    }
    meet(group, "broken");
    EXPECT_ERROR(OperationTimeoutError, group->barrier(), "rank 2 has not called any operation");
    meet(group, "end");
  });
}

TEST_P(Timeouts, OfPointToPointDoNotBreakTheGroup) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    if (group->rank() == 0) {
      const auto took = time_of([&] {
        EXPECT_ERROR(OperationTimeoutError, group->recv(x, 1, {.tag = 4, .timeout = 100ms}), "rank 1");
        const auto work = group->recv(x, 1, {.tag = 5, .async_op = true, .timeout = 100ms});
        EXPECT_ERROR(OperationTimeoutError, work.wait(), "100 ms");
        EXPECT_ERROR(OperationTimeoutError, group->recv_any_source(x, {.tag = 6, .timeout = 100ms}), "any rank");
        // The message is larger than a mailbox, so the send waits for a receiver. Engines cannot cancel such a send.
        const std::vector<int> large(1'000'000);
        if (backend_under_test().empty()) {
          EXPECT_ERROR(OperationTimeoutError, group->send(large, 1, {.tag = 7, .timeout = 100ms}), "rank 1");
        }
      });
      EXPECT_GE(took, 298ms);
      EXPECT_LT(took, 400ms + 4 * grace);
    }
    group->barrier();
    std::vector<int> sum{1};
    group->all_reduce(sum);
    EXPECT_EQ(sum[0], group->size());
    // Receives that timed out do not take messages that arrive later.
    if (group->rank() == 1) {
      group->send(std::vector<int>{42}, 0, {.tag = 4});
    } else if (group->rank() == 0) {
      group->recv(x, 1, {.tag = 4});
      EXPECT_EQ(x[0], 42);
    }
    group->barrier();
    meet(group, "end");
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Timeouts, ::testing::ValuesIn(on_backends({threads(2), processes(2)})),
                         [](const auto& each) { return to_string(each.param); });

/// The deadline counts from the call, even while the operation waits for its turn.
TEST(TimeoutOfACall, CountsWhileQueued) {
  const GatedGroup gated;
  std::vector<int> x(1);
  const auto slow = gated.group->all_reduce(x, {.async_op = true, .timeout = 400ms});
  const auto behind = gated.group->all_reduce(x, {.async_op = true, .timeout = 200ms});
  EXPECT_THROW(slow.wait(), OperationTimeoutError);
  const auto took = time_of([&] { EXPECT_THROW(behind.wait(), OperationTimeoutError); });
  EXPECT_LT(took, 150ms) << "its time was up when its turn came";
}

}  // namespace
}  // namespace cohort::test
