// SPDX-License-Identifier: BSD-3-Clause
//
// Sequence numbers and hooks.
#include <cohort/log.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "group/breakable_ranks.h"
#include "group/gate.h"
#include "support/expect_error.h"
#include "support/log_capture.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class Sequence : public ::testing::TestWithParam<Ranks> {};

TEST_P(Sequence, NumbersAdvanceAndAgree) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto expect_agreement = [](const ProcessGroupPtr& each, std::uint64_t expected) {
      EXPECT_EQ(each->sequence_number(), expected);
      EXPECT_THAT(each->all_gather_bytes(std::to_string(each->sequence_number())),
                  ::testing::Each(std::to_string(expected)));
    };
    EXPECT_EQ(group->sequence_number(), 0U);
    std::vector<int> x(3);
    group->all_reduce(x);
    const auto work = group->broadcast(x, {.async_op = true});
    EXPECT_EQ(group->sequence_number(), 2U) << "counted when issued";
    work.wait();
    EXPECT_THROW(group->broadcast(x, {.root = 99}), ValueError);
    EXPECT_THROW(group->all_gather(x, x), Error);
    expect_agreement(group, 2);

    // A batch of collectives takes one sequence number; point-to-point operations have separate numbers.
    auto batch = group->batch();
    batch.all_reduce(x);
    batch.all_reduce(x);
    EXPECT_EQ(batch.run().sequence(), 4U);
    if (group->rank() == 0) group->send(x, 1);
    if (group->rank() == 1) group->recv(x, 0);
    expect_agreement(group, 4);

    const auto pair = group->split_group({0, 1});
    const auto after = group->sequence_number();
    EXPECT_THAT(group->all_gather_bytes(std::to_string(after)), ::testing::Each(std::to_string(after)));
    if (pair) {
      EXPECT_EQ(pair->sequence_number(), 0U) << "a group counts by itself";
      pair->all_reduce(x);
      expect_agreement(pair, 1);
      EXPECT_EQ(group->sequence_number(), after + 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Sequence, ::testing::ValuesIn(on_backends({threads(3), processes(3)})),
                         [](const auto& each) { return to_string(each.param); });

TEST(SequenceOfMany, ThreadsEachTakeTheirOwn) {
  const GatedGroup gated;
  gated.gate().open();
  as_threads(4, [&](int) {
    std::vector<int> x(1);
    for (int i = 0; i < 500; ++i) gated.group->all_reduce(x, {.async_op = i % 2 == 0});
  });
  EXPECT_EQ(gated.group->sequence_number(), 2000U);
}

TEST(SequenceOfPointToPoint, CountsFromOne) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    const int other = 1 - group->rank();
    std::vector<int> x(1);
    std::vector<int> y(1);
    auto batch = group->batch();
    batch.send(x, other);
    batch.recv(y, other);
    EXPECT_GE(batch.run().sequence(), 1U);
    EXPECT_EQ(group->send(x, other, {.async_op = true}).sequence(), 3U);
    EXPECT_EQ(group->recv(y, other).sequence(), 4U);
    EXPECT_EQ(group->sequence_number(), 0U);
  });
}

// --- hooks

/// The events that hooks were called with, in order.
struct Told {
  std::mutex mutex;
  std::vector<HookEvent> events;
  std::vector<std::thread::id> threads;

  Hook hook() {
    return [this](const HookEvent& event) {
      const std::lock_guard lock(mutex);
      events.push_back(event);
      threads.push_back(std::this_thread::get_id());
    };
  }
  std::size_t count() {
    const std::lock_guard lock(mutex);
    return events.size();
  }
};

TEST(GroupHooks, AreCalledOnceForEachOperation) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    Told pre;
    Told post;
    group->add_pre_hook(pre.hook());
    group->add_post_hook(post.hook());
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int> x(10);
    std::vector<int> y(20);
    const int other = 1 - group->rank();
    group->all_reduce(x);
    group->all_gather(y, x, {.async_op = true}).wait();
    group->barrier();
    const auto sending = group->send(x, other, {.async_op = true});
    group->recv(y, other, {.tag = 9, .async_op = true, .timeout = 50ms});  // fails
    group->recv(x, other);
    sending.wait();
    group->wait_for_pending();
    const auto end = std::chrono::steady_clock::now();

    ASSERT_EQ(pre.count(), 6U);
    ASSERT_EQ(post.count(), 6U);
    const auto find = [](Told& told, OpType op, std::uint64_t sequence) {
      for (const auto& event : told.events) {
        if (event.op == op && event.sequence == sequence) return event;
      }
      ADD_FAILURE() << to_string(op) << " #" << sequence << " is missing";
      return HookEvent{};
    };
    struct Expected {
      OpType op;
      std::uint64_t sequence;
      std::size_t bytes;
    };
    for (const auto& each : {Expected{OpType::all_reduce, 1, 40}, Expected{OpType::all_gather_single, 2, 40},
                             Expected{OpType::barrier, 3, 0}, Expected{OpType::send, 1, 40},
                             Expected{OpType::recv, 2, 80}, Expected{OpType::recv, 3, 40}}) {
      const auto before = find(pre, each.op, each.sequence);
      EXPECT_EQ(before.group, group->id());
      EXPECT_EQ(before.bytes, each.bytes);
      const auto after = find(post, each.op, each.sequence);
      EXPECT_EQ(after.group, group->id());
      EXPECT_EQ(after.bytes, each.bytes);
      EXPECT_LE(begin, after.started);
      EXPECT_LE(after.started, after.finished);
      EXPECT_LE(after.finished, end);
      EXPECT_EQ(after.duration, after.finished - after.started);
      EXPECT_EQ(after.error != nullptr, each.sequence == 2 && each.op == OpType::recv);
    }
  });
}

TEST(GroupHooks, PreRunsOnTheCallersThread) {
  const GatedGroup gated;
  gated.gate().open();
  Told pre;
  gated.group->add_pre_hook(pre.hook());
  std::vector<int> x(1);
  gated.group->all_reduce(x);
  gated.group->all_reduce(x, {.async_op = true}).wait();
  gated.group->recv(x, 0, {.async_op = true}).wait();
  EXPECT_THAT(pre.threads, ::testing::Each(std::this_thread::get_id()));
}

TEST(GroupHooks, PreIsCalledBeforeTheCallReturnsAndPostBeforeWaitDoes) {
  const GatedGroup gated;
  Told pre;
  Told post;
  gated.group->add_pre_hook(pre.hook());
  gated.group->add_post_hook(post.hook());
  std::vector<int> x(1);
  const auto first = gated.group->all_reduce(x, {.async_op = true});
  const auto queued = gated.group->all_reduce(x, {.async_op = true});
  EXPECT_EQ(pre.count(), 2U);
  EXPECT_EQ(post.count(), 0U);
  gated.gate().open();
  queued.wait();
  EXPECT_EQ(post.count(), 2U);
}

TEST(GroupHooks, AreToldWhatWentWrong) {
  const GatedGroup gated;
  Told post;
  gated.group->add_post_hook(post.hook());
  std::vector<int> x(1);
  EXPECT_THROW(gated.group->broadcast(x), BackendError);
  ASSERT_EQ(post.count(), 1U);
  EXPECT_ERROR(BackendError, std::rethrow_exception(post.events[0].error), "broken on purpose");
}

TEST(GroupHooks, ThatThrowAreHarmless) {
  LogCapture log;
  with_threads(2, [](const ProcessGroupPtr& group) {
    Told after;
    group->add_pre_hook([](const HookEvent&) { throw std::runtime_error("a bad pre hook"); });
    group->add_post_hook([](const HookEvent&) { throw std::runtime_error("a bad post hook"); });
    group->add_post_hook(after.hook());
    group->add_abort_hook([](std::string_view) { throw std::runtime_error("a bad abort hook"); });
    std::vector<int> x{1};
    group->all_reduce(x);
    group->all_reduce(x, {.async_op = true}).wait();
    EXPECT_EQ(x[0], 4);
    EXPECT_EQ(after.count(), 2U) << "the next hook is called all the same";
    group->barrier();
    EXPECT_NO_THROW(group->abort("over"));
  });
  EXPECT_THAT(log.text(),
              ::testing::AllOf(::testing::HasSubstr("a bad pre hook"), ::testing::HasSubstr("a bad post hook"),
                               ::testing::HasSubstr("a bad abort hook")));
}

/// Runs in a child process, because an exception that escapes from a thread would end the process.
TEST(GroupHooks, ThatThrowWhatIsNoExceptionAreHarmlessToo) {
  Process child([] {
    const GatedGroup gated;
    gated.gate().open();
    gated.group->add_post_hook([](const HookEvent&) { throw 5; });
    gated.group->add_abort_hook([](std::string_view) { throw 5; });
    std::vector<int> x(1);
    EXPECT_NO_THROW(gated.group->all_reduce(x, {.async_op = true}).wait());
    EXPECT_NO_THROW(gated.group->all_reduce(x));
    EXPECT_NO_THROW(gated.group->abort("over"));
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(GroupHooks, AbortHookIsToldTheReasonOnce) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<std::string> reasons;
    group->add_abort_hook([&](std::string_view reason) { reasons.emplace_back(reason); });
    group->barrier();
    if (group->rank() == 0) {
      group->abort("the loss is NaN");
      group->abort("again");
      EXPECT_EQ(reasons, std::vector<std::string>{"the loss is NaN"});
    }
    meet(group, "end");
  });
}

}  // namespace
}  // namespace cohort::test
