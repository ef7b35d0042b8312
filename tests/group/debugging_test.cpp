// SPDX-License-Identifier: BSD-3-Clause
//
// Tools for finding out why ranks disagree: monitored_barrier, debug levels, mismatch detection and fork detection.
#include <cohort/debug_level.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "group/breakable_ranks.h"
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

/// Restores the debug level of the process.
class DebugLevelScope {
 public:
  explicit DebugLevelScope(DebugLevel level) : before_(debug_level()) { set_debug_level(level); }
  ~DebugLevelScope() { set_debug_level(before_); }
  DebugLevelScope(const DebugLevelScope&) = delete;
  DebugLevelScope& operator=(const DebugLevelScope&) = delete;

 private:
  DebugLevel before_;
};

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

// --- disagreement

/// What rank 0 calls, what the other ranks call, and what the error must say.
struct Disagreement {
  std::string name;
  std::function<void(ProcessGroup&)> first;
  std::function<void(ProcessGroup&)> others;
  std::string about;              ///< at level detail
  std::vector<std::string> says;  ///< at both levels
  bool is_seen_when_off = true;
};

std::vector<float>& floats(std::size_t n) {
  thread_local std::vector<std::vector<float>> kept(64);
  kept[n].resize(n);
  return kept[n];
}

const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all{
      {"Operation",
       [](ProcessGroup& g) { g.all_reduce(floats(4)); },
       [](ProcessGroup& g) { g.reduce(floats(4)); },
       "operation",
       {"all_reduce", "reduce"}},
      {"OperationAgainstBarrier",
       [](ProcessGroup& g) { g.broadcast(floats(4)); },
       [](ProcessGroup& g) { g.barrier(); },
       "operation",
       {"broadcast", "barrier"}},
      {"Size",
       [](ProcessGroup& g) { g.all_reduce(floats(4)); },
       [](ProcessGroup& g) { g.all_reduce(floats(5)); },
       "shapes",
       {"all_reduce"}},
      {"Dtype",
       [](ProcessGroup& g) { g.all_reduce(floats(4)); },
       [](ProcessGroup& g) {
         std::vector<int> x(4);
         g.all_reduce(x);
       },
       "dtypes",
       {"f32", "i32"}},
      {"Root",
       [](ProcessGroup& g) { g.broadcast(floats(4), {.root = 0}); },
       [](ProcessGroup& g) { g.broadcast(floats(4), {.root = 1}); },
       "root",
       {"root 0", "root 1"},
       false},  // every rank that waits, waits for a root that it agrees with
      {"RootOfReduce",
       [](ProcessGroup& g) { g.reduce(floats(4), {.root = 0}); },
       [](ProcessGroup& g) { g.reduce(floats(4), {.root = 1}); },
       "root",
       {"root 0", "root 1"}},
      {"Reduction",
       [](ProcessGroup& g) { g.all_reduce(floats(4)); },
       [](ProcessGroup& g) { g.all_reduce(floats(4), {.op = ReduceOp::max()}); },
       "reduction",
       {"sum", "max"}},
      {"SizeOfBroadcast",
       [](ProcessGroup& g) { g.broadcast(floats(8)); },
       [](ProcessGroup& g) { g.broadcast(floats(4)); },
       "shapes",
       {"broadcast"}},
  };
  return all;
}

struct MismatchCase {
  Ranks ranks;
  Disagreement what;
};

/// The name identifies the case in test output; the other members would add nothing.
void PrintTo(const MismatchCase& each, std::ostream* out) {
  *out << each.what.name;
}

class MismatchAtDetail : public ::testing::TestWithParam<MismatchCase> {};
class MismatchAtOff : public ::testing::TestWithParam<MismatchCase> {};

TEST_P(MismatchAtDetail, IsReportedOnAllRanksAtThatOperation) {
  const DebugLevelScope scope(DebugLevel::detail);
  const auto& what = GetParam().what;
  GetParam().ranks.run([&](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    group->all_reduce(x);
    try {
      group->rank() == 0 ? what.first(*group) : what.others(*group);
      ADD_FAILURE() << "nothing was thrown on rank " << group->rank();
    } catch (const MismatchError& e) {
      EXPECT_THAT(e.what(), HasSubstr("disagree on " + what.about));
      for (const auto& text : what.says) EXPECT_THAT(e.what(), HasSubstr(text));
      EXPECT_EQ(e.context().sequence, 2U);
      EXPECT_EQ(e.context().rank, 1);
    }
    // Every rank knows about the mismatch, and the ranks stay synchronised.
    x[0] = 1;
    group->all_reduce(x);
    EXPECT_EQ(x[0], group->size());
    EXPECT_EQ(group->sequence_number(), 3U);
  });
}

TEST_P(MismatchAtOff, IsFoundAndBreaksTheGroup) {
  const DebugLevelScope scope(DebugLevel::off);
  const auto& what = GetParam().what;
  run_breakable(GetParam().ranks, [&](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    group->all_reduce(x);
    // A rank that does not wait for a peer may finish before another rank detects the mismatch; then the next operation
    // fails.
    const auto both = [&] {
      group->rank() == 0 ? what.first(*group) : what.others(*group);
      group->barrier();
    };
    const auto took = time_of([&] {
      const auto message = message_of<MismatchError>(both);
      for (const auto& text : what.says) EXPECT_THAT(message, HasSubstr(text));
    });
    EXPECT_LT(took, grace) << "no timeout was needed";
    meet(group, "end");
    EXPECT_THROW(group->barrier(), MismatchError) << "the group is broken";
    meet(group, "very end");
  });
}

std::vector<MismatchCase> mismatch_cases(bool is_off) {
  std::vector<MismatchCase> cases;
  for (const auto& what : disagreements()) {
    if (!what.is_seen_when_off && is_off) continue;
    cases.push_back({threads(3), what});
    cases.push_back({processes(2), what});
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<MismatchCase>& each) {
  return each.param.what.name + to_string(each.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Groups, MismatchAtDetail, ::testing::ValuesIn(mismatch_cases(false)), case_name);
INSTANTIATE_TEST_SUITE_P(Groups, MismatchAtOff, ::testing::ValuesIn(mismatch_cases(true)), case_name);

TEST(MismatchDetail, NumberOfDimensionsAndShape) {
  const DebugLevelScope scope(DebugLevel::detail);
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<float> x(6);
    const Dims dims = group->rank() == 0 ? Dims{2, 3} : Dims{6};
    EXPECT_ERROR(MismatchError, group->all_reduce(Buffer(x.data(), DType::f32, dims)), "shapes");
    const Dims turned = group->rank() == 0 ? Dims{2, 3} : Dims{3, 2};
    EXPECT_ERROR(MismatchError, group->broadcast(Buffer(x.data(), DType::f32, turned)), "[2, 3]");
    group->barrier();
  });
}

TEST(MismatchDetail, ShapesThatMayDifferAreNotCompared) {
  const DebugLevelScope scope(DebugLevel::detail);
  with_threads(2, [](const ProcessGroupPtr& group) {
    const bool is_first = group->rank() == 0;
    std::vector<int> one(1, group->rank());
    std::vector<int> two(2, group->rank());
    std::vector<int> three(3);
    // Uneven lists, uneven splits, and gathers and scatters, whose arguments differ on the root.
    group->all_gather({one, two}, is_first ? one : two);
    group->reduce_scatter(is_first ? one : two, {one, two});
    group->all_to_all(is_first ? two : three, is_first ? three : two,
                      {.output_splits = is_first ? std::vector<std::int64_t>{1, 1} : std::vector<std::int64_t>{2, 1},
                       .input_splits = is_first ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1, 1}});
    std::vector<int> other(1);
    group->gather(is_first ? BufferList{one, other} : BufferList{}, one);
    group->scatter(one, is_first ? ConstBufferList{other, other} : ConstBufferList{});
    group->all_reduce(one, {.op = ReduceOp::sum()});
    std::vector<float> f(1);
    group->all_reduce(f, {.op = ReduceOp::premul_sum(is_first ? 0.5 : 2.0)});
    group->all_reduce_coalesced({one, two});
    if (is_first) group->send(one, 1);
    if (!is_first) group->recv(one, 0);
    group->barrier();
  });
}

class BatchAtDetail : public ::testing::TestWithParam<Ranks> {};

/// Gathers and scatters have other buffers on the root than elsewhere.
TEST_P(BatchAtDetail, IsAMismatchOnlyIfItsMembersDisagree) {
  const DebugLevelScope scope(DebugLevel::detail);
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto n = static_cast<std::size_t>(group->size());
    for (const std::size_t count : {0U, 2U, 5000U}) {
      std::vector<std::vector<float>> pieces(n, std::vector<float>(count, static_cast<float>(group->rank())));
      std::vector<float> mine(count, 7);
      for (int root = 0; root < group->size(); ++root) {
        const bool is_root = group->rank() == root;
        const BufferList outputs(is_root ? std::vector<Buffer>(pieces.begin(), pieces.end()) : std::vector<Buffer>());
        const ConstBufferList inputs(is_root ? std::vector<Buffer>(pieces.begin(), pieces.end())
                                             : std::vector<Buffer>());
        auto batch = group->batch();
        batch.gather(outputs, mine, {.root = root});
        batch.scatter(mine, inputs, {.root = root});
        batch.reduce(mine, {.root = root});
        batch.barrier();
        EXPECT_NO_THROW(batch.run({.async_op = root % 2 == 0}).wait());
      }
    }
    std::vector<float> mine(4);
    auto wrong = group->batch();
    wrong.reduce(mine);
    wrong.broadcast(mine, {.root = group->rank() == 0 ? 0 : 1});
    EXPECT_ERROR(MismatchError, wrong.run(), "disagree");
    group->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, BatchAtDetail, ::testing::ValuesIn(on_backends({threads(3), processes(3)})),
                         [](const auto& each) { return to_string(each.param); });

TEST(MismatchDetail, MissingRankIsNamed) {
  const DebugLevelScope scope(DebugLevel::detail);
  run_breakable(threads(3), [](const ProcessGroupPtr& group) {
    std::vector<int> x(1);
    group->all_reduce(x);
    if (group->rank() != 2) {
      EXPECT_ERROR(OperationTimeoutError, group->all_reduce(x, {.timeout = 200ms}), "missing: rank 2");
    }
    meet(group, "end");
  });
}

TEST(MismatchDetail, AGroupKeepsTheLevelItWasMadeWith) {
  const DebugLevelScope scope(DebugLevel::off);
  run_breakable(threads(2), [](const ProcessGroupPtr& group) {
    set_debug_level(DebugLevel::detail);
    const auto child = group->split_group({0, 1});
    std::vector<int> x(1);
    std::vector<int> y(2);
    EXPECT_ERROR(MismatchError, child->all_reduce(group->rank() == 0 ? x : y), "disagree");
    child->barrier();
    const auto message = message_of<MismatchError>([&] {
      group->all_reduce(group->rank() == 0 ? x : y);
      group->barrier();
    });
    EXPECT_THAT(message, Not(HasSubstr("disagree")));
    meet(group, "end");
  });
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

#if defined(__SANITIZE_THREAD__)
constexpr bool can_start_threads_after_fork = false;  // ThreadSanitizer ends a process that does
#else
constexpr bool can_start_threads_after_fork = true;
#endif

TEST(AfterFork, TheChildCanDropTheGroupAndMakeItsOwn) {
  const ProcessStore store;
  as_processes(2, [&](int rank) {
    auto group = join_processes(store, rank, 2);
    std::vector<int> x{1};
    group->all_reduce(x, {.async_op = true}).wait();
    Process child([&] {
      group.reset();
      const auto own =
          new_group("shm", patient, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
      std::vector<int> y{3};
      own->all_reduce(y, {.async_op = can_start_threads_after_fork}).wait();
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
