// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks that disagree about an operation: which operation it is, its root, size, dtype, reduction, or the layout of its
// memory.
#include <cohort/debug_level.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "group/arrangements.h"
#include "group/breakable_ranks.h"
#include "support/debug_level_scope.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

/// One call of every operation, with n elements.
namespace calls {

template <class T = float>
void all_reduce(ProcessGroup& g, std::size_t n, const ReduceOp& op = ReduceOp::sum()) {
  std::vector<T> x(n);
  g.all_reduce(x, {.op = op});
}
void reduce(ProcessGroup& g, std::size_t n, int root, const ReduceOp& op = ReduceOp::sum()) {
  std::vector<float> x(n);
  g.reduce(x, {.root = root, .op = op});
}
template <class T = float>
void broadcast(ProcessGroup& g, std::size_t n, int root = 0) {
  std::vector<T> x(n);
  g.broadcast(x, {.root = root});
}
template <class T = float>
void gather(ProcessGroup& g, std::size_t n, int root = 0) {
  const std::vector<T> x(n);
  std::vector<std::vector<T>> all(g.rank() == root ? index(g.size()) : 0, x);
  g.gather(all, x, {.root = root});
}
template <class T = float>
void scatter(ProcessGroup& g, std::size_t n, int root = 0) {
  std::vector<T> x(n);
  const std::vector<std::vector<T>> all(g.rank() == root ? index(g.size()) : 0, x);
  g.scatter(x, all, {.root = root});
}
template <class T = float>
void all_gather(ProcessGroup& g, std::size_t n) {
  const std::vector<T> x(n);
  std::vector<T> all(n * index(g.size()));
  g.all_gather(all, x);
}
void reduce_scatter(ProcessGroup& g, std::size_t n, const ReduceOp& op = ReduceOp::sum()) {
  std::vector<float> x(n);
  const std::vector<float> all(n * index(g.size()));
  g.reduce_scatter(x, all, {.op = op});
}
template <class T = float>
void all_to_all(ProcessGroup& g, std::size_t n) {
  const std::vector<T> in(n * index(g.size()));
  std::vector<T> out(in.size());
  g.all_to_all(out, in);
}
/// A matrix of two rows, stored by rows or by columns.
Buffer matrix(std::vector<float>& memory, bool is_transposed) {
  const auto columns = static_cast<std::int64_t>(memory.size() / 2);
  Buffer buffer(memory.data(), DType::f32, {2, columns}, is_transposed ? Dims{1, 2} : Dims{columns, 1});
  buffer.use_in_memory_order(true);
  return buffer;
}
void all_reduce_matrix(ProcessGroup& g, std::size_t n, bool is_transposed) {
  std::vector<float> x(n);
  g.all_reduce(matrix(x, is_transposed));
}
void broadcast_matrix(ProcessGroup& g, std::size_t n, bool is_transposed) {
  std::vector<float> x(n);
  g.broadcast(matrix(x, is_transposed));
}

}  // namespace calls

/// What ranks disagree about.
namespace disagreement {

using namespace calls;
using Call = void (*)(ProcessGroup& group, std::size_t n);
using G = ProcessGroup;

/// What one rank calls, what the others call, and what the error must say.
struct Disagreement {
  const char* name;
  Call one;
  Call others;
  const char* about;              ///< at level detail; nullptr: that level compares nothing here
  std::vector<std::string> says;  ///< at both levels
};

const std::vector<Disagreement>& all() {
  static const std::vector<Disagreement> list{
      {"Operation",
       [](G& g, std::size_t n) { all_reduce(g, n); },
       [](G& g, std::size_t n) { reduce(g, n, 0); },
       "operation",
       {"all_reduce", "reduce"}},
      {"OperationAgainstBarrier",
       [](G& g, std::size_t n) { broadcast(g, n); },
       [](G& g, std::size_t) { g.barrier(); },
       "operation",
       {"broadcast", "barrier"}},
      {"BroadcastAgainstReduce",
       [](G& g, std::size_t n) { broadcast(g, n); },
       [](G& g, std::size_t n) { reduce(g, n, 0); },
       "operation",
       {"broadcast", "reduce"}},
      {"ReduceAgainstScatter",
       [](G& g, std::size_t n) { reduce(g, n, 0); },
       [](G& g, std::size_t n) { scatter(g, n); },
       "operation",
       {"reduce", "scatter"}},
      {"GatherAgainstBroadcast",
       [](G& g, std::size_t n) { gather(g, n); },
       [](G& g, std::size_t n) { broadcast(g, n); },
       "operation",
       {"gather", "broadcast"}},
      {"AllToAllAgainstAllGather",
       [](G& g, std::size_t n) { all_to_all(g, n); },
       [](G& g, std::size_t n) { all_gather(g, n); },
       "operation",
       {"all_to_all", "all_gather"}},

      {"Size",
       [](G& g, std::size_t n) { all_reduce(g, n); },
       [](G& g, std::size_t n) { all_reduce(g, n + 1); },
       "shapes",
       {"all_reduce"}},
      {"SizeOfBroadcast",
       [](G& g, std::size_t n) { broadcast(g, n); },
       [](G& g, std::size_t n) { broadcast(g, n + 1); },
       "shapes",
       {"broadcast"}},
      {"SmallWhereLarge",
       [](G& g, std::size_t n) { broadcast(g, n); },
       [](G& g, std::size_t n) { broadcast(g, n + 100'000); },
       "shapes",
       {"broadcast"}},
      {"SizeOfReduce",
       [](G& g, std::size_t n) { reduce(g, n, 0); },
       [](G& g, std::size_t n) { reduce(g, n + 1, 0); },
       "shapes",
       {"reduce"}},
      {"SizeOfGather",
       [](G& g, std::size_t n) { gather(g, n); },
       [](G& g, std::size_t n) { gather(g, n + 1); },
       "shapes",
       {"gather"}},
      {"SizeOfScatter",
       [](G& g, std::size_t n) { scatter(g, n); },
       [](G& g, std::size_t n) { scatter(g, n + 1); },
       "shapes",
       {"scatter"}},
      {"SizeOfAllGather",
       [](G& g, std::size_t n) { all_gather(g, n); },
       [](G& g, std::size_t n) { all_gather(g, n + 1); },
       "shapes",
       {"all_gather"}},
      {"SizeOfReduceScatter",
       [](G& g, std::size_t n) { reduce_scatter(g, n); },
       [](G& g, std::size_t n) { reduce_scatter(g, n + 1); },
       "shapes",
       {"reduce_scatter"}},

      {"Dtype",
       [](G& g, std::size_t n) { all_reduce(g, n); },
       [](G& g, std::size_t n) { all_reduce<std::int32_t>(g, n); },
       "dtypes",
       {"f32", "i32"}},
      {"DtypeOfBroadcast",
       [](G& g, std::size_t n) { broadcast(g, n); },
       [](G& g, std::size_t n) { broadcast<std::int32_t>(g, n); },
       "dtypes",
       {"f32", "i32"}},
      {"DtypeOfGather",
       [](G& g, std::size_t n) { gather(g, n); },
       [](G& g, std::size_t n) { gather<std::int32_t>(g, n); },
       "dtypes",
       {"f32", "i32"}},
      {"DtypeOfScatter",
       [](G& g, std::size_t n) { scatter(g, n); },
       [](G& g, std::size_t n) { scatter<std::int32_t>(g, n); },
       "dtypes",
       {"f32", "i32"}},
      {"DtypeOfAllGather",
       [](G& g, std::size_t n) { all_gather(g, n); },
       [](G& g, std::size_t n) { all_gather<std::int32_t>(g, n); },
       "dtypes",
       {"f32", "i32"}},
      {"DtypeOfAllToAll",
       [](G& g, std::size_t n) { all_to_all(g, n); },
       [](G& g, std::size_t n) { all_to_all<std::int32_t>(g, n); },
       "dtypes",
       {"f32", "i32"}},

      {"Root",
       [](G& g, std::size_t n) { broadcast(g, n, 0); },
       [](G& g, std::size_t n) { broadcast(g, n, 1); },
       "root",
       {"root 0", "root 1"}},
      {"RootOfReduce",
       [](G& g, std::size_t n) { reduce(g, n, 0); },
       [](G& g, std::size_t n) { reduce(g, n, 1); },
       "root",
       {"root 0", "root 1"}},
      {"RootOfGather",
       [](G& g, std::size_t n) { gather(g, n, 0); },
       [](G& g, std::size_t n) { gather(g, n, 1); },
       "root",
       {"root 0", "root 1"}},
      {"RootOfScatter",
       [](G& g, std::size_t n) { scatter(g, n, 0); },
       [](G& g, std::size_t n) { scatter(g, n, 1); },
       "root",
       {"root 0", "root 1"}},
      {"RootOfByteStrings",
       [](G& g, std::size_t n) { g.broadcast_bytes(std::string(n, 'a'), {.root = 0}); },
       [](G& g, std::size_t n) { g.broadcast_bytes(std::string(n, 'b'), {.root = 1}); },
       nullptr,
       {"root 0", "root 1"}},

      {"Reduction",
       [](G& g, std::size_t n) { all_reduce(g, n); },
       [](G& g, std::size_t n) { all_reduce(g, n, ReduceOp::max()); },
       "reduction",
       {"sum", "max"}},
      {"ReductionOfReduce",
       [](G& g, std::size_t n) { reduce(g, n, 0); },
       [](G& g, std::size_t n) { reduce(g, n, 0, ReduceOp::max()); },
       "reduction",
       {"sum", "max"}},
      {"ReductionOfReduceScatter",
       [](G& g, std::size_t n) { reduce_scatter(g, n); },
       [](G& g, std::size_t n) { reduce_scatter(g, n, ReduceOp::max()); },
       "reduction",
       {"sum", "max"}},

      {"Layout",
       [](G& g, std::size_t n) { all_reduce_matrix(g, n, false); },
       [](G& g, std::size_t n) { all_reduce_matrix(g, n, true); },
       "shapes",
       {"all_reduce"}},
      {"LayoutOfBroadcast",
       [](G& g, std::size_t n) { broadcast_matrix(g, n, false); },
       [](G& g, std::size_t n) { broadcast_matrix(g, n, true); },
       "shapes",
       {"broadcast"}},
  };
  return list;
}

}  // namespace disagreement

using disagreement::Disagreement;

struct MismatchCase {
  Ranks ranks;
  std::size_t elements;
  Disagreement what;
};

/// The name identifies the case in test output; the other members would add nothing.
void PrintTo(const MismatchCase& each, std::ostream* out) {
  *out << each.what.name;
}

constexpr std::size_t few_elements = 4;         // on shm, within the posts
constexpr std::size_t many_elements = 300'000;  // on shm, directly or through staging buffers

// --- at level detail

class MismatchAtDetail : public ::testing::TestWithParam<MismatchCase> {};

TEST_P(MismatchAtDetail, IsReportedOnAllRanksAtThatOperation) {
  const DebugLevelScope scope(DebugLevel::detail);
  const auto& what = GetParam().what;
  GetParam().ranks.run([&](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    group->all_reduce(x);
    try {
      (group->rank() == 0 ? what.one : what.others)(*group, few_elements);
      ADD_FAILURE() << "nothing was thrown on rank " << group->rank();
    } catch (const MismatchError& e) {
      EXPECT_THAT(e.what(), HasSubstr(std::string("disagree on ") + what.about));
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

// --- at level off

class MismatchAtOff : public ::testing::TestWithParam<MismatchCase> {};

TEST_P(MismatchAtOff, IsFoundAndBreaksTheGroup) {
  const DebugLevelScope scope(DebugLevel::off);
  const auto& [ranks, elements, what] = GetParam();
  // In shared memory every rank compares itself with all others. An engine's rank only knows those it communicates
  // with, so it may be done before another has found the mismatch: then it is told by its next operation.
  const bool is_told_at_once = backend_under_test().empty();
  const auto odd_ranks = is_told_at_once ? std::vector<int>{0, ranks.size - 1} : std::vector<int>{ranks.size - 1};
  for (const int odd : odd_ranks) {
    SCOPED_TRACE("the odd one is rank " + std::to_string(odd));
    run_breakable(ranks, [&](const ProcessGroupPtr& group) {
      std::vector<int> x{1};
      group->all_reduce(x);
      // An engine tells a broken group to ranks that are still at the end of the operation before.
      if (!is_told_at_once) meet(group, "begin");
      const auto took = time_of([&] {
        try {
          (group->rank() == odd ? what.one : what.others)(*group, elements);
          if (!is_told_at_once) group->barrier();
          ADD_FAILURE() << "nothing was thrown on rank " << group->rank();
        } catch (const MismatchError& e) {
          for (const auto& text : what.says) EXPECT_THAT(e.what(), HasSubstr(text));
          if (is_told_at_once) {
            EXPECT_EQ(e.context().sequence, 2U);
          } else {
            EXPECT_THAT(e.what(), HasSubstr("#2"));
          }
        }
      });
      EXPECT_LT(took, 2 * grace) << "no timeout was needed";
      meet(group, "end");
      EXPECT_THROW(group->barrier(), MismatchError) << "the group is broken";
      meet(group, "very end");
    });
  }
}

class MismatchOfPieces : public ::testing::TestWithParam<Ranks> {};

/// The pieces of an all_to_all have sizes that only two ranks know.
TEST_P(MismatchOfPieces, IsToldToAllRanksAtThatOperation) {
  const bool is_told_at_once = backend_under_test().empty();
  for (const std::size_t elements : {few_elements, std::size_t{5000}, many_elements}) {
    run_breakable(GetParam(), [&](const ProcessGroupPtr& group) {
      if (!is_told_at_once) group->set_timeout(2s);
      try {
        calls::all_to_all(*group, group->rank() == 0 ? elements + 1 : elements);
        ADD_FAILURE() << "nothing was thrown on rank " << group->rank() << ", " << elements << " elements";
      } catch (const MismatchError& e) {
        EXPECT_THAT(e.what(), HasSubstr("which expects"));
      } catch (const OperationTimeoutError& e) {
        EXPECT_FALSE(is_told_at_once) << e.what();
        EXPECT_THAT(e.what(), HasSubstr("all ranks have entered it"));
      }
      meet(group, "end");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, MismatchOfPieces, ::testing::ValuesIn(on_backends({threads(4), processes(3)})),
                         [](const auto& each) { return to_string(each.param); });

std::vector<MismatchCase> mismatch_cases(bool is_off) {
  std::vector<Ranks> usual{threads(3), processes(2)};
  const bool is_usual = backend_under_test().empty();
  // MPI's ranks cannot go on in their launcher's world after a group broke.
  const auto all_ranks = is_usual ? usual : is_off ? on_backends({processes(4)}) : arrangements(false);
  std::vector<MismatchCase> cases;
  for (const auto& ranks : all_ranks) {
    for (const auto& what : disagreement::all()) {
      if (!is_off && what.about == nullptr) continue;
      cases.push_back({.ranks = ranks, .elements = few_elements, .what = what});
      if (is_usual && is_off) cases.push_back({.ranks = ranks, .elements = many_elements, .what = what});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<MismatchCase>& each) {
  return each.param.what.name + to_string(each.param.ranks) + (each.param.elements == many_elements ? "Large" : "");
}

INSTANTIATE_TEST_SUITE_P(Groups, MismatchAtDetail, ::testing::ValuesIn(mismatch_cases(false)), case_name);
INSTANTIATE_TEST_SUITE_P(Groups, MismatchAtOff, ::testing::ValuesIn(mismatch_cases(true)), case_name);

// --- what level detail compares besides

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
    EXPECT_EQ(one, std::vector<int>({0}));
    EXPECT_EQ(two, std::vector<int>({1, 1}));
    std::vector<int> sum(is_first ? 1U : 2U);
    group->reduce_scatter(sum, {one, two});
    EXPECT_EQ(sum, is_first ? std::vector<int>({0}) : std::vector<int>({2, 2}));
    group->all_to_all(is_first ? two : three, is_first ? three : two,
                      {.output_splits = is_first ? std::vector<std::int64_t>{1, 1} : std::vector<std::int64_t>{2, 1},
                       .input_splits = is_first ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1, 1}});
    std::vector<int> mine{group->rank() + 5};
    std::vector<int> other(1);
    group->gather(is_first ? BufferList{one, other} : BufferList{}, mine);
    if (is_first) {
      EXPECT_EQ(other, std::vector<int>({6}));
    }
    group->scatter(one, is_first ? ConstBufferList{mine, other} : ConstBufferList{});
    EXPECT_EQ(one, mine);
    std::vector<float> f{4};
    group->all_reduce(f, {.op = ReduceOp::premul_sum(is_first ? 0.5 : 2.0)});
    EXPECT_EQ(f, std::vector<float>({10}));
    if (is_first) group->send(mine, 1);
    if (!is_first) group->recv(one, 0);
    EXPECT_EQ(one, std::vector<int>({5}));
    // Shapes that may not differ are compared, and the group can go on.
    EXPECT_ERROR(MismatchError, group->all_reduce(is_first ? one : two), "all_reduce");
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
      std::vector<float> values(n, 7);  // of every rank's buffer
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
        batch.run({.async_op = root % 2 == 0}).wait();
        // Everybody gets back what the root has gathered, and the root then has the sum.
        values[static_cast<std::size_t>(root)] = std::accumulate(values.begin(), values.end(), 0.0F);
        EXPECT_EQ(mine, std::vector<float>(count, values[static_cast<std::size_t>(group->rank())])) << root;
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

}  // namespace
}  // namespace cohort::test
