// SPDX-License-Identifier: BSD-3-Clause
//
// A rank calls a different operation than the others, or none at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "faults/fault_scenario.h"
#include "faults/where.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Call = void (*)(ProcessGroup& group);

struct Misuse {
  const char* name;
  Call right;
  Call wrong;

  friend void PrintTo(const Misuse& misuse, std::ostream* out) { *out << misuse.name; }
};

template <class T = float>
std::vector<T>& data(std::size_t elements) {
  static std::vector<T> memory;
  memory.assign(elements, T{1});
  return memory;
}

constexpr Misuse misuses[] = {
    {"SkippedCollective",
     [](ProcessGroup& group) {
       group.all_reduce(data(4));
       group.barrier();
     },
     [](ProcessGroup& group) { group.barrier(); }},
    {"OtherOperation", [](ProcessGroup& group) { group.all_reduce(data(4)); },
     [](ProcessGroup& group) { group.broadcast(data(4)); }},
    {"OtherReduction", [](ProcessGroup& group) { group.all_reduce(data(4)); },
     [](ProcessGroup& group) { group.all_reduce(data(4), {.op = ReduceOp::max()}); }},
    {"OtherSize", [](ProcessGroup& group) { group.all_reduce(data(4)); },
     [](ProcessGroup& group) { group.all_reduce(data(5)); }},
    {"OtherLargeSize", [](ProcessGroup& group) { group.all_reduce(data(500'000)); },
     [](ProcessGroup& group) { group.all_reduce(data(400'000)); }},
    {"SmallWhereLarge", [](ProcessGroup& group) { group.all_reduce(data(500'000)); },
     [](ProcessGroup& group) { group.all_reduce(data(4)); }},
    {"OtherType", [](ProcessGroup& group) { group.all_reduce(data(4)); },
     [](ProcessGroup& group) { group.all_reduce(data<std::int32_t>(4)); }},
    {"OtherSmallRoot", [](ProcessGroup& group) { group.broadcast(data(4)); },
     [](ProcessGroup& group) { group.broadcast(data(4), {.root = 1}); }},
    {"OtherRoot", [](ProcessGroup& group) { group.broadcast(data(500'000)); },
     [](ProcessGroup& group) { group.broadcast(data(500'000), {.root = 1}); }},
    {"OtherBlockSize",
     [](ProcessGroup& group) {
       std::vector<float> to(10'000 * static_cast<std::size_t>(group.size()));
       group.all_to_all(to, data(to.size()));
     },
     [](ProcessGroup& group) {
       std::vector<float> to(9'000 * static_cast<std::size_t>(group.size()));
       group.all_to_all(to, data(to.size()));
     }},
};

class MisuseTest : public FaultTest, public ::testing::WithParamInterface<Misuse> {};

TEST_P(MisuseTest, IsAMismatchOnEveryRank) {
  for (const int size : {2, 3, 4}) {
    for (const int odd : {0, size - 1}) {
      const auto title = std::string(GetParam().name) + ", rank " + std::to_string(odd) + " of " + std::to_string(size);
      SCOPED_TRACE(title);
      FaultScenario scenario(store(), size, [&](Member& me) {
        const auto group = me.join(20s);
        me.say("made");
        me.attempt("operation", [&] { (me.rank() == odd ? GetParam().wrong : GetParam().right)(*group); });
      });
      scenario.hear_all("made");
      const auto start = Clock::now();
      const auto words = scenario.hear_all("operation");
      note(title, words.front(), milliseconds_between(start, words.front().when));
      for (const auto& word : words) {
        EXPECT_EQ(word.type, "MismatchError") << word;
        // Two ranks cannot know which of them is right, so the message names both.
        EXPECT_GE(word.at_fault, 0) << word;
        EXPECT_THAT(word.text, HasSubstr("rank " + std::to_string(odd)));
        EXPECT_LT(milliseconds_between(start, word.when), 1000);
      }
      scenario.expect_end();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MisuseTest, ::testing::ValuesIn(misuses),
                         [](const auto& each) { return std::string(each.param.name); });

class AbsenceTest : public FaultTest {};

TEST_F(AbsenceTest, OfALivingRankEndsAtTheDeadlineAndIsNamed) {
  for (const int size : {2, 3, 4}) {
    const int absent = size / 2;
    SCOPED_TRACE(size);
    FaultScenario scenario(store(), size, [&](Member& me) {
      const auto group = me.join(20s);
      group->barrier();
      me.say("made");
      if (me.rank() == absent) return me.await_go();
      const auto start = Clock::now();
      me.attempt("operation", [&] { group->all_reduce(data(4), {.timeout = 300ms}); });
      me.say("waited", std::to_string(milliseconds_between(start, Clock::now())));
      me.attempt("afterwards", [&] { group->barrier(); });
      me.await_go();
    });
    scenario.hear_all("made");
    for (const auto& word : scenario.hear_all("operation", absent)) {
      EXPECT_EQ(word.type, "OperationTimeoutError") << word;
      EXPECT_EQ(word.at_fault, absent) << word;
      EXPECT_THAT(word.text, HasSubstr("missing: rank " + std::to_string(absent)));
    }
    for (const auto& word : scenario.hear_all("waited", absent)) {
      EXPECT_LT(std::stoi(word.text), 600);
      EXPECT_GE(std::stoi(word.text), 200);  // another may have given up first
    }
    for (const auto& word : scenario.hear_all("afterwards", absent))
      EXPECT_EQ(word.type, "OperationTimeoutError") << word;
    scenario.go_all();
    scenario.expect_end();
  }
}

/// Parts are not compared, which a mesh does before (mesh.h). Ranks wait for members that do not come, or notice that
/// these do something else.
class OtherParts : public FaultTest, public ::testing::WithParamInterface<Where> {};

TEST_P(OtherParts, EndAtTheDeadlineForRanksThatWaitForOneAnother) {
  constexpr auto deadline = 500ms;
  FaultScenario scenario(store(), 3, [&](Member& me) {
    const auto group = GetParam().join(me);
    group->set_timeout(deadline);
    me.say("made");
    me.await_go();
    const std::vector<std::vector<int>> parts{{0, 1}, {2}};
    const std::vector<std::vector<int>> others{{0}, {1, 2}};
    me.attempt("partition", [&] { group->partition(me.rank() == 1 ? others : parts); });
    me.await_go();
  });
  scenario.hear_all("made");
  const auto start = Clock::now();
  scenario.go_all();
  for (const auto& word : scenario.hear_all("partition", 2)) {
    EXPECT_THAT(word.type, AnyOf("OperationTimeoutError", "MismatchError")) << word;
    EXPECT_GE(word.at_fault, 0) << word;
    EXPECT_LT(milliseconds_between(start, word.when), 2000 + std::chrono::milliseconds(deadline).count()) << word;
  }
  scenario.hear(2, "partition");  // its part is itself alone, so it may have one
  scenario.go_all();
  scenario.expect_end();
}

INSTANTIATE_TEST_SUITE_P(Everywhere, OtherParts, ::testing::ValuesIn(everywhere),
                         [](const auto& each) { return to_string(each.param); });

}  // namespace
}  // namespace cohort::test
