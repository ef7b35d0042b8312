// SPDX-License-Identifier: BSD-3-Clause
//
// How a group ends: by shutdown(), by abort(), or by destruction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "group/breakable_ranks.h"
#include "group/gate.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr auto promptly = 300ms;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr auto promptly = 300ms;
#else
constexpr auto promptly = 100ms;
#endif
#else
constexpr auto promptly = 100ms;
#endif

class Ends : public ::testing::TestWithParam<Ranks> {};

TEST_P(Ends, ShutdownFlushesWhatIsQueued) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<std::vector<int>> buffers(20, std::vector<int>(10'000, 1));
    std::vector<int> in(100'000);
    const std::vector<int> out(100'000, group->rank());
    const int other = (group->rank() + 1) % 2;
    std::vector<Work> works;
    works.reserve(buffers.size() + 2);
    for (auto& buffer : buffers) works.push_back(group->all_reduce(buffer, {.async_op = true}));
    works.push_back(group->send(out, other, {.async_op = true}));
    works.push_back(group->recv(in, other, {.async_op = true}));
    group->shutdown();
    for (const auto& work : works) EXPECT_TRUE(work.is_success());
    for (const auto& buffer : buffers) ASSERT_EQ(buffer.back(), 2);
    EXPECT_EQ(in.back(), other);
    meet(group, "end");
  });
}

TEST_P(Ends, AfterShutdownEveryOperationIsAnError) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(2);
    group->all_reduce(x);
    group->shutdown();
    EXPECT_NO_THROW(group->shutdown());
    const int other = (group->rank() + 1) % 2;
    EXPECT_ERROR(Error, group->all_reduce(x), "shut down");
    EXPECT_ERROR(Error, group->all_reduce(x, {.async_op = true}).wait(), "shut down");
    EXPECT_ERROR(Error, group->barrier(), "shut down");
    EXPECT_ERROR(Error, group->send(x, other), "shut down");
    EXPECT_ERROR(Error, group->recv(x, other, {.async_op = true}).wait(), "shut down");
    EXPECT_ERROR(Error, group->all_gather_bytes("x"), "shut down");
    EXPECT_ERROR(Error, group->monitored_barrier(), "shut down");
    EXPECT_ERROR(Error, group->split_group({0}), "shut down");
    EXPECT_ERROR(Error, group->allocate(8), "shut down");
    EXPECT_EQ(group->rank() + group->size() + static_cast<int>(group->sequence_number()), group->rank() + 2 + 1)
        << "it can still be asked";
    meet(group, "end");
  });
}

/// Ranks 0 and 1 of 3 wait in an operation that rank 2 does not call; another thread of rank 0 aborts. Both are freed.
/// Rank 2 was not waiting. Where ranks share memory it knows of the abort at once. On an engine the news takes a moment
/// to reach it, and until then it may complete the very operation that the others had begun, once.
///
/// Returns how long it took, on this rank, until the abort had freed it and until abort() itself had returned.
Clock::duration abort_one(const ProcessGroupPtr& group, const std::function<void(const ProcessGroupPtr&)>& stuck) {
  group->barrier();
  meet(group, "begun");  // otherwise the abort would end the barrier of a rank that has not left it yet
  group->add_pre_hook([&](const HookEvent&) { say(group, "stuck/" + std::to_string(group->rank())); });
  std::thread aborter;
  Clock::duration aborting{};
  if (group->rank() == 0) {
    aborter = std::thread([&] {
      await(group, "stuck/0");
      await(group, "stuck/1");
      const auto before = Clock::now();
      group->abort("the loss is NaN");
      aborting = Clock::now() - before;
      group->store()->clone()->set("aborted", std::to_string(before.time_since_epoch().count()));
    });
  }
  Clock::duration freeing{};
  if (group->rank() < 2) {
    const auto message = message_of<AbortedError>([&] { stuck(group); });
    const auto freed = Clock::now();
    EXPECT_THAT(message, ::testing::HasSubstr("rank 0 aborted the group: the loss is NaN"));
    // All processes of a host share the steady clock.
    freeing = freed - Clock::time_point(Clock::duration(std::stoll(group->store()->clone()->get("aborted", patient))));
    say(group, "freed/" + std::to_string(group->rank()));
  }
  if (aborter.joinable()) aborter.join();
  group->store()->wait({"aborted"}, patient);
  // Only then, because on an engine rank 1 could complete its operation with rank 2 before the news reaches it.
  for (const int each : {0, 1}) await(group, "freed/" + std::to_string(each));
  // The group has ended, and the process continues.
  std::vector<int> x(1);
  if (group->rank() == 2 && (group->name() == "gloo" || group->name() == "hybrid")) {
    try {
      group->all_reduce(x);
    } catch (const AbortedError&) {
    }
  }
  EXPECT_THROW(group->all_reduce(x), AbortedError);
  EXPECT_THROW(group->barrier({.async_op = true}).wait(), AbortedError);
  EXPECT_THROW(group->send(x, 0), AbortedError);
  EXPECT_THROW(group->split_group({0}), AbortedError);
  EXPECT_NO_THROW(group->abort("once more"));
  EXPECT_NO_THROW(group->shutdown());
  meet(group, "end");
  return std::max(freeing, aborting);
}

/// On a busy machine a rank may get no processor for longer than an abort takes: most of the aborts must be prompt.
void expect_abort_frees(Ranks ranks, const std::function<void(const ProcessGroupPtr&)>& stuck) {
  ranks.size = 3;
  run_breakable(ranks, [&](const ProcessGroupPtr& group) {
    std::vector<Clock::duration> took;
    for (int attempt = 0; attempt < 5; ++attempt) {
      took.push_back(abort_one(group->split_group({0, 1, 2}), stuck));
      EXPECT_LT(took.back(), grace);
    }
    std::sort(took.begin(), took.end());
    EXPECT_LT(took[took.size() / 2], promptly);
    meet(group, "very end");
  });
}

/// Rank 0 aborts while it waits in an operation, and only then do the others call it, at once. What they get depends
/// on how quickly the news reaches them; on rank 0, nothing succeeds any more.
TEST_P(Ends, AfterAnAbortNothingSucceedsOnThatRank) {
  auto ranks = GetParam();
  ranks.size = 3;
  for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
    run_breakable(ranks, [&](const ProcessGroupPtr& group) {
      group->barrier();
      meet(group, "begun");
      std::vector<int> x(count);
      std::vector<int> y(1);
      if (group->rank() != 0) {
        await(group, "aborted");
        // Whichever it gets, it gets it at once: the group has ended for rank 0.
        EXPECT_LT(time_of([&] {
                    try {
                      group->all_reduce(x);
                      group->barrier();
                      ADD_FAILURE() << "the group works without rank 0";
                    } catch (const AbortedError&) {
                      EXPECT_THROW(group->barrier(), AbortedError);
                    }
                  }),
                  grace);
      } else {
        group->add_pre_hook([&](const HookEvent&) { say(group, "stuck"); });
        const auto stuck = group->all_reduce(x, {.async_op = true});
        const auto receiving = group->recv(y, 1, {.async_op = true});
        await(group, "stuck");
        group->abort("enough");
        say(group, "aborted");
        EXPECT_ERROR(AbortedError, stuck.wait(), "enough");
        EXPECT_ERROR(AbortedError, receiving.wait(), "enough");
        for (int i = 0; i < 3; ++i) {
          EXPECT_ERROR(AbortedError, group->all_reduce(x), "enough");
          EXPECT_ERROR(AbortedError, group->send(y, 2), "enough");
        }
      }
      meet(group, "end");
    });
  }
}

TEST_P(Ends, AbortFreesAStuckCollective) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
    expect_abort_frees(GetParam(), [&](const ProcessGroupPtr& group) {
      std::vector<int> x(count);
      group->all_reduce(x);
    });
  }
}

TEST_P(Ends, AbortFreesAnAsynchronousCollective) {
  expect_abort_frees(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(100);
    const auto work = group->all_reduce(x, {.async_op = true});
    const auto behind = group->barrier({.async_op = true});
    EXPECT_THROW(behind.wait(), AbortedError);
    work.wait();
  });
}

TEST_P(Ends, AbortFreesAStuckReceive) {
  expect_abort_frees(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(100);
    group->rank() == 0 ? group->recv(x, 2) : group->recv_any_source(x);
  });
}

TEST_P(Ends, AbortFreesAStuckSend) {
  expect_abort_frees(GetParam(), [](const ProcessGroupPtr& group) {
    const std::vector<int> large(10'000'000);
    group->send(large, 2);
  });
}

TEST_P(Ends, AbortFreesAnAsynchronousReceive) {
  expect_abort_frees(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(100);
    group->recv(x, 2, {.async_op = true}).wait();
  });
}

TEST_P(Ends, AbortFreesAStuckSplit) {
  run_breakable(
      GetParam(),
      [](const ProcessGroupPtr& group) {
        if (group->rank() == 0) {
          group->add_pre_hook([&](const HookEvent&) { say(group, "stuck"); });
          const auto took = time_of([&] { EXPECT_THROW(group->split_group({0, 1}), AbortedError); });
          EXPECT_LT(took, 3s);
        } else {
          await(group, "stuck");
          group->abort("no more splits");
        }
        meet(group, "end");
      },
      5s);
}

TEST_P(Ends, OperationsAfterAFailureSaySinceWhenTheGroupIsBroken) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<int> x(3);
    for (int i = 0; i < 3; ++i) group->all_reduce(x);
    meet(group, "begun");
    if (group->rank() == 0) {
      const auto first = message_of<OperationTimeoutError>([&] { group->all_reduce(x, {.timeout = 200ms}); });
      EXPECT_THAT(first, ::testing::Not(::testing::HasSubstr("broken since")));
      for (const auto& later : {message_of<OperationTimeoutError>([&] { group->barrier(); }),
                                message_of<OperationTimeoutError>([&] { group->send(x, 1); }),
                                message_of<OperationTimeoutError>([&] { group->all_reduce(x); })}) {
        EXPECT_THAT(later, ::testing::StartsWith("the group is broken since all_reduce #4: "));
        EXPECT_THAT(later, ::testing::HasSubstr("missing: rank 1"));
        EXPECT_THAT(later, ::testing::HasSubstr("; make a new group or call shrink()"));
      }
    }
    meet(group, "end");
  });
}

TEST_P(Ends, OperationsAfterAnAbortCarryItsReason) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    group->barrier();
    meet(group, "begun");
    if (group->rank() == 0) group->abort("the loss is NaN");
    meet(group, "aborted");
    EXPECT_ERROR(AbortedError, group->barrier(), "the loss is NaN");
    meet(group, "end");
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Ends, ::testing::ValuesIn(on_backends({threads(2), processes(2)})),
                         [](const auto& each) { return to_string(each.param); });

TEST(Abort, FreesAStuckMonitoredBarrier) {
  with_threads(3, [](const ProcessGroupPtr& group) {
    if (group->rank() < 2) {
      if (group->rank() == 0) say(group, "stuck");
      EXPECT_THROW(group->monitored_barrier(), AbortedError);
    } else {
      await(group, "stuck");
      group->abort("enough");
    }
    meet(group, "end");
  });
}

TEST(Abort, PrevailsOverABackendThatSucceedsOrFailsOtherwise) {
  std::vector<int> x(3);
  const GatedGroup gated;
  const auto first = gated.group->all_reduce(x, {.async_op = true});
  const auto second = gated.group->all_reduce(x, {.async_op = true});
  const auto failing = gated.group->broadcast(x, {.async_op = true});
  const auto receiving = gated.group->recv(x, 0, {.async_op = true});
  gated.gate().await_arrivals(1);
  gated.group->abort("enough");
  gated.gate().open();  // and all of them complete
  for (const auto& work : {first, second, failing, receiving}) {
    EXPECT_ERROR(AbortedError, work.wait(), "rank 0 aborted the group: enough");
  }
  EXPECT_ERROR(AbortedError, gated.group->barrier(), "enough");
}

TEST(Destruction, WaitsForQueuedWork) {
  std::vector<int> x(3);
  std::vector<Work> works;
  std::thread opener;
  {
    auto gated = std::make_unique<GatedGroup>();
    const auto backend = gated->backend;
    for (int i = 0; i < 5; ++i) works.push_back(gated->group->all_reduce(x, {.async_op = true}));
    works.push_back(gated->group->recv(x, 0, {.async_op = true}));
    opener = std::thread([backend] {
      backend->gate.await_arrivals(1);
      backend->gate.open();
    });
    gated.reset();
    for (const auto& work : works) EXPECT_TRUE(work.is_success());
  }
  opener.join();
}

TEST(Destruction, RunsContinuationsToTheEnd) {
  std::atomic<int> called{0};
  std::vector<int> x(3);
  std::vector<Work> works;
  std::vector<Future<void>> futures;
  {
    const GatedGroup gated;
    for (int i = 0; i < 10; ++i) {
      works.push_back(gated.group->all_reduce(x, {.async_op = true}));
      futures.push_back(works.back().then([&](const auto&) { ++called; }));
    }
    gated.gate().open();
  }
  for (const auto& future : futures) future.value(60s);
  EXPECT_EQ(called, 10);
}

/// The last handle to a group may be held by the keep-alive of one of its operations. Then the thread that ran the
/// operation destroys the group, and later operations must not be affected. Runs in a child process, because a failure
/// may crash it.
void expect_operations_may_own_their_group(const std::function<Work(ProcessGroup&, const Buffer&)>& issue) {
  struct Tensor {
    ProcessGroupPtr group;
    std::vector<int> values = std::vector<int>(3);
  };
  Process child([&]() -> int {
    ::alarm(20);
    ::mallopt(M_PERTURB, 0x5a);  // freed memory no longer looks like a group
    for (int round = 0; round < 200; ++round) {
      std::shared_ptr<GatedBackend> backend;
      std::weak_ptr<ProcessGroup> watch;
      std::vector<Work> works;
      {
        const GatedGroup gated;
        backend = gated.backend;
        watch = gated.group;
        for (int i = 0; i < 4; ++i) {
          const auto tensor = std::make_shared<Tensor>();
          if (i == 0) tensor->group = gated.group;
          works.push_back(issue(*gated.group, Buffer(tensor->values.data(), DType::i32, {3}, {}, {}, tensor)));
        }
      }
      backend->gate.open();
      for (auto& work : works) {
        work.wait();
        work = Work();
      }
      while (!watch.expired()) std::this_thread::yield();
    }
    // Other children call _exit(); this one calls exit(), which joins the thread of the last round.
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(Destruction, ByWhatACollectiveKeptAlive) {
  expect_operations_may_own_their_group(
      [](ProcessGroup& group, const Buffer& buffer) { return group.all_reduce(buffer, {.async_op = true}); });
}

TEST(Destruction, ByWhatAReceiveKeptAlive) {
  expect_operations_may_own_their_group(
      [](ProcessGroup& group, const Buffer& buffer) { return group.recv(buffer, 0, {.async_op = true}); });
}

TEST(Destruction, OfARealGroupWithQueuedWork) {
  with_threads(2, [](const ProcessGroupPtr& world) {
    std::vector<std::vector<int>> buffers(30, std::vector<int>(5000, 1));
    std::vector<Work> works;
    {
      const auto group = world->split_group({0, 1});
      for (auto& buffer : buffers) works.push_back(group->all_reduce(buffer, {.async_op = true}));
    }
    for (const auto& work : works) EXPECT_TRUE(work.is_success());
    for (const auto& buffer : buffers) ASSERT_EQ(buffer.front(), 2);
  });
}

TEST(Destruction, IsBoundedByTheOperationsDeadlines) {
  with_threads(2, [](const ProcessGroupPtr& world) {
    if (world->rank() == 0) {
      auto memory = std::make_shared<std::vector<int>>(3);
      auto group = world->split_group({0, 1});
      group->all_reduce(Buffer(memory->data(), DType::i32, {3}, {}, {}, memory), {.async_op = true, .timeout = 200ms});
      const auto took = time_of([&] { group.reset(); });
      EXPECT_LT(took, 5s);
      say(world, "gone");
    } else {
      const auto group = world->split_group({0, 1});
      await(world, "gone");
    }
  });
}

TEST(Destruction, OfOneRankIsSeenByTheOthers) {
  with_threads(2, [](const ProcessGroupPtr& world) {
    auto group = world->split_group({0, 1});
    if (world->rank() == 0) {
      group.reset();
    } else {
      std::vector<int> x(3);
      const auto took = time_of([&] { EXPECT_ERROR(PeerLostError, group->all_reduce(x), "rank 0 has left"); });
      EXPECT_LT(took, 5s) << "long before its timeout";
    }
    meet(world, "end");
  });
}

TEST(Destruction, ManyGroupsComeAndGo) {
  with_threads(3, [](const ProcessGroupPtr& world) {
    for (int i = 0; i < 100; ++i) {
      const auto group = world->split_group({0, 1, 2});
      std::vector<int> x{1};
      if (i % 2 == 0) {
        group->all_reduce(x, {.async_op = true}).wait();
      } else {
        group->all_reduce(x);
      }
      ASSERT_EQ(x[0], 3);
      if (i % 3 == 0) group->shutdown();
    }
  });
}

}  // namespace
}  // namespace cohort::test
