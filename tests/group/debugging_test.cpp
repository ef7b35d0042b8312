// SPDX-License-Identifier: BSD-3-Clause
//
// Tools for finding out why ranks disagree: monitored_barrier, debug levels and fork detection.
#include <cohort/debug_level.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <ostream>
#include <string>
#include <vector>

#include "group/breakable_ranks.h"
#include "support/debug_level_scope.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// --- monitored_barrier

class MonitoredBarrier : public ::testing::TestWithParam<Ranks> {};

TEST_P(MonitoredBarrier, Passes) {
  GetParam().run([](const ProcessGroupPtr& group) {
    for (int i = 0; i < 3; ++i) {
      group->monitored_barrier();
      group->monitored_barrier({.timeout = 20s, .wait_all_ranks = true});
      std::vector<int> x{1};
      group->all_reduce(x);
      EXPECT_EQ(x[0], group->size());
    }
  });
}

TEST_P(MonitoredBarrier, NamesTheFirstMissingRank) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    const bool is_missing = group->rank() == 1 || group->rank() == 3;
    if (!is_missing) {
      const auto took = time_of([&] {
        const auto message = message_of<OperationTimeoutError>([&] { group->monitored_barrier({.timeout = 300ms}); });
        EXPECT_THAT(message, AllOf(HasSubstr("rank 1 did not join within 300 ms"), Not(HasSubstr("ranks")),
                                   HasSubstr("monitored_barrier")))
            << "on rank " << group->rank();
      });
      EXPECT_LT(took, 300ms + grace);
    }
    meet(group, "end");
    // Ranks that were late get an error when they arrive, and the group stays usable.
    if (is_missing) {
      EXPECT_THROW(group->monitored_barrier({.timeout = 100ms}), Error);
    }
    meet(group, "late");
    std::vector<int> x{1};
    group->all_reduce(x);
    EXPECT_EQ(x[0], 4);
    group->barrier();
  });
}

TEST_P(MonitoredBarrier, NamesAllMissingRanks) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    if (group->rank() == 0 || group->rank() == 2) {
      try {
        group->monitored_barrier({.timeout = 300ms, .wait_all_ranks = true});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const OperationTimeoutError& e) {
        EXPECT_THAT(e.what(), HasSubstr("ranks 1, 3 did not join"));
        EXPECT_EQ(e.context().rank, 1);
        EXPECT_EQ(e.context().group, group->id());
      }
    }
    meet(group, "end");
  });
}

TEST_P(MonitoredBarrier, SaysThatRankZeroIsMissing) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    if (group->rank() == 1) {
      EXPECT_ERROR(OperationTimeoutError, group->monitored_barrier({.timeout = 50ms}), "rank 0");
    }
    meet(group, "end");
  });
}

TEST_P(MonitoredBarrier, WorksAgainAfterwards) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    if (group->rank() == 0) {
      EXPECT_THROW(group->monitored_barrier({.timeout = 50ms, .wait_all_ranks = true}), OperationTimeoutError);
    }
    meet(group, "failed");
    // The other ranks catch up with the round that they missed, for which rank 0 sends no answer.
    if (group->rank() != 0) {
      EXPECT_THROW(group->monitored_barrier({.timeout = 50ms}), Error);
    }
    meet(group, "caught up");
    group->monitored_barrier({.timeout = 20s});
    meet(group, "end");
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, MonitoredBarrier, ::testing::ValuesIn(on_backends({threads(4), processes(4)})),
                         [](const auto& each) { return to_string(each.param); });

// --- levels

TEST(DebugLevels, AreParsedInAnyCase) {
  EXPECT_EQ(parse_debug_level("off"), DebugLevel::off);
  EXPECT_EQ(parse_debug_level("OFF"), DebugLevel::off);
  EXPECT_EQ(parse_debug_level("Info"), DebugLevel::info);
  EXPECT_EQ(parse_debug_level("DETAIL"), DebugLevel::detail);
  for (const std::string bad : {"", "on", "1", "details", " off", "debug"}) {
    EXPECT_ERROR(ValueError, parse_debug_level(bad), "off, info or detail");
  }
  for (const auto level : {DebugLevel::off, DebugLevel::info, DebugLevel::detail}) {
    EXPECT_EQ(parse_debug_level(to_string(level)), level);
  }
}

TEST(DebugLevels, CanBeSet) {
  const DebugLevelScope scope(DebugLevel::off);
  set_debug_level(DebugLevel::info);
  EXPECT_EQ(debug_level(), DebugLevel::info);
}

TEST(DebugLevels, ComeFromTheEnvironment) {
  const auto level_of = [](const char* name, const char* value) {
    Process child([&] {
      ::clearenv();
      if (name != nullptr) ::setenv(name, value, 1);
      set_debug_level_from_env();
      return static_cast<int>(debug_level());
    });
    return child.wait();
  };
  EXPECT_EQ(level_of(nullptr, nullptr), 0);
  EXPECT_EQ(level_of("COHORT_DEBUG", "detail"), 2);
  EXPECT_EQ(level_of("COHORT_DEBUG", "INFO"), 1);
  EXPECT_EQ(level_of("TORCH_DISTRIBUTED_DEBUG", "DETAIL"), 2);
  EXPECT_EQ(level_of("COHORT_DEBUG", ""), 0);
  Process refused([] {
    ::clearenv();
    ::setenv("COHORT_DEBUG", "loud", 1);
    EXPECT_ERROR(ValueError, set_debug_level_from_env(), "COHORT_DEBUG");
    EXPECT_ERROR(ValueError, set_debug_level_from_env(), "loud");
    return 0;
  });
  EXPECT_EQ(refused.wait(), 0);
}

// --- fork

TEST(AfterFork, UseOfTheParentsGroupIsAnError) {
  const ProcessStore store;
  as_processes(2, [&](int rank) {
    const auto group = join_processes(store, rank, 2);
    std::vector<int> x{1};
    group->all_reduce(x, {.async_op = true}).wait();  // the group's thread exists in this process, but not in the child
    Process child([&] {
      const auto took = time_of([&] {
        EXPECT_ERROR(Error, group->all_reduce(x), "fork");
        EXPECT_ERROR(Error, group->all_reduce(x, {.async_op = true}), "fork");
        EXPECT_ERROR(Error, group->send(x, 1 - rank), "fork");
        EXPECT_ERROR(Error, group->recv(x, 1 - rank, {.async_op = true}), "fork");
        EXPECT_ERROR(Error, group->barrier(), "fork");
        EXPECT_ERROR(Error, group->monitored_barrier(), "fork");
        EXPECT_ERROR(Error, group->split_group({0}), "fork");
        EXPECT_ERROR(Error, group->all_gather_bytes("x"), "fork");
        EXPECT_ERROR(Error, group->allocate(8), "fork");
      });
      EXPECT_LT(took, grace);
      return 0;
    });
    EXPECT_EQ(child.wait(), 0);
    x[0] = 1;
    group->all_reduce(x);
    EXPECT_EQ(x[0], 2) << "the parent's group is none the worse";
    group->barrier();
    return 0;
  });
}

// ThreadSanitizer ends a process that starts threads after a fork. AddressSanitizer's allocator has locks, which stay
// locked in the child if another thread had one at the fork.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool threads_and_forks_go_together = false;
#else
constexpr bool threads_and_forks_go_together = true;
#endif

TEST(AfterFork, TheChildCanDropTheGroupAndMakeItsOwn) {
  const ProcessStore store;
  as_processes(2, [&](int rank) {
    auto group = join_processes(store, rank, 2);
    std::vector<int> x{1};
    group->all_reduce(x, {.async_op = threads_and_forks_go_together}).wait();
    Process child([&] {
      group.reset();
      const auto own =
          new_group("shm", patient, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
      std::vector<int> y{3};
      own->all_reduce(y, {.async_op = threads_and_forks_go_together}).wait();
      EXPECT_EQ(y[0], 3);
      return 0;
    });
    EXPECT_EQ(child.wait(), 0);
    x[0] = 1;
    group->all_reduce(x);
    EXPECT_EQ(x[0], 2);
    group->barrier();
    return 0;
  });
}

TEST(AfterFork, TheChildCannotAbortTheParentsGroup) {
  const ProcessStore store;
  as_processes(2, [&](int rank) {
    const auto group = join_processes(store, rank, 2);
    group->barrier();
    if (rank == 0) {
      Process child([&] {
        EXPECT_THROW(group->abort("from the child"), Error);
        return 0;
      });
      EXPECT_EQ(child.wait(), 0);
    }
    EXPECT_NO_THROW(group->barrier());
    return 0;
  });
}

}  // namespace
}  // namespace cohort::test
