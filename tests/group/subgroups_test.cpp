// SPDX-License-Identifier: BSD-3-Clause
//
// Groups made from groups: split_group and merge_remote_group.
#include <cohort/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "group/arrangements.h"
#include "group/breakable_ranks.h"
#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

int sum_over(const ProcessGroupPtr& group, int value) {
  std::vector<int> x{value};
  group->all_reduce(x);
  return x[0];
}

class Subgroups : public ::testing::TestWithParam<Ranks> {};

TEST_P(Subgroups, MembersGetAGroupAndTheOthersNull) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto single = group->split_group({0}, {.timeout = 30s, .name = "single"});
    ASSERT_EQ(single != nullptr, group->rank() == 0);
    if (single) {
      EXPECT_EQ(single->rank(), 0);
      EXPECT_EQ(single->size(), 1);
      EXPECT_EQ(single->timeout(), 30s);
      EXPECT_EQ(single->group_name(), "single");
      EXPECT_EQ(sum_over(single, 7), 7);
    }
    const auto last = group->split_group({group->size() - 1, 1});
    ASSERT_EQ(last != nullptr, group->rank() == 1 || group->rank() == group->size() - 1);
    if (last) {
      EXPECT_EQ(sum_over(last, group->rank()), group->size());
    }
    EXPECT_EQ(sum_over(group, 1), group->size());
  });
}

TEST_P(Subgroups, RanksAreSorted) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto child = group->split_group({3, 0, 2});
    if (group->rank() == 1) {
      EXPECT_EQ(child, nullptr);
      return;
    }
    ASSERT_NE(child, nullptr);
    EXPECT_EQ(child->rank(), group->rank() == 0 ? 0 : group->rank() - 1);
    EXPECT_THAT(child->global_ranks(), ElementsAre(0, 2, 3));
    EXPECT_EQ(child->group_name(), ":split:[0, 2, 3]");
    // The root of an operation in the child is a rank of the child.
    std::vector<int> x{group->rank()};
    child->broadcast(x, {.root = 1});
    EXPECT_EQ(x[0], 2);
    std::vector<int> all(3);
    child->all_gather(all, std::vector<int>{group->rank()});
    EXPECT_THAT(all, ElementsAre(0, 2, 3));
  });
}

TEST_P(Subgroups, ArgumentErrorsLeaveTheGroupUsable) {
  GetParam().run([](const ProcessGroupPtr& group) {
    EXPECT_ERROR(ValueError, group->split_group({}), "no ranks");
    EXPECT_ERROR(ValueError, group->split_group({0, 1, 0}), "twice");
    EXPECT_ERROR(ValueError, group->split_group({0, group->size()}), "0 to 3");
    EXPECT_ERROR(ValueError, group->split_group({-1}), "-1");
    EXPECT_ERROR(ValueError, group->split_group({0, 1, 2, 3, 4}), "0 to 3");
    EXPECT_EQ(group->sequence_number(), 0U);
    EXPECT_EQ(sum_over(group, 1), group->size());
    EXPECT_EQ(sum_over(group->split_group({0, 1, 2, 3}), 1), 4) << "all of them is fine";
  });
}

TEST_P(Subgroups, TimeoutNameAndDescription) {
  GetParam().run(
      [](const ProcessGroupPtr& group) {
        group->set_group_name("world");
        group->set_group_desc("everybody");
        group->set_timeout(40s);
        const auto plain = group->split_group({1, 0, 2, 3});
        EXPECT_EQ(plain->timeout(), 40s);
        EXPECT_EQ(plain->group_name(), "world:split:[0, 1, 2, 3]");
        EXPECT_EQ(plain->group_desc(), "everybody:split:0");
        const auto second = group->split_group({0, 1, 2, 3});
        EXPECT_EQ(second->group_desc(), "everybody:split:1");
        const auto named = group->split_group({0, 1, 2, 3}, {.timeout = 20s, .name = "n", .description = "d"});
        EXPECT_EQ(named->timeout(), 20s);
        EXPECT_EQ(named->group_name(), "n");
        EXPECT_EQ(named->group_desc(), "d");
        named->set_timeout(10s);
        named->set_group_name("renamed");

        EXPECT_EQ(group->timeout(), 40s);
        EXPECT_EQ(group->group_name(), "world");
        EXPECT_EQ(group->group_desc(), "everybody");
        EXPECT_EQ(plain->timeout(), 40s);
        EXPECT_EQ(plain->name(), group->name());
        std::set<std::string> ids{group->id(), plain->id(), second->id(), named->id()};
        EXPECT_EQ(ids.size(), 4U);
        for (const auto& each : {plain, second, named}) {
          EXPECT_THAT(each->all_gather_bytes(each->id()), ::testing::Each(each->id()));
        }
        // Each child has its own store, even though two have the same name.
        plain->store()->set("key", "plain's");
        EXPECT_FALSE(named->store()->check({"key"}));
        EXPECT_FALSE(group->store()->check({"key"}));
        group->barrier();
      },
      55s);
}

TEST_P(Subgroups, StoresOfSplitsWithTheSameNameAreApart) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto first = group->split_group({0, 1, 2, 3});
    const auto second = group->split_group({0, 1, 2, 3});
    EXPECT_EQ(first->group_name(), second->group_name());
    first->store()->set("mine/" + std::to_string(group->rank()), "first");
    group->barrier();
    EXPECT_FALSE(second->store()->check({"mine/" + std::to_string(group->rank())}));
    group->barrier();
  });
}

TEST_P(Subgroups, DisjointOnesAtOnce) {
  GetParam().run([](const ProcessGroupPtr& group) {
    // All ranks call split_group for both halves; each rank is a member of one.
    const auto low = group->split_group({0, 1});
    const auto high = group->split_group({2, 3});
    const auto& mine = group->rank() < 2 ? low : high;
    const auto& other = group->rank() < 2 ? high : low;
    ASSERT_NE(mine, nullptr);
    EXPECT_EQ(other, nullptr);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(sum_over(mine, group->rank()), group->rank() < 2 ? 1 : 5);
    EXPECT_EQ(sum_over(group, group->rank()), 6);
  });
}

TEST_P(Subgroups, PartsAtOnce) {
  GetParam().run([](const ProcessGroupPtr& group) {
    group->set_group_name("w");
    const auto before = group->sequence_number();
    const auto part = group->partition({{0, 2}, {1, 3}});
    EXPECT_EQ(group->sequence_number(), before + 1) << "one step for all parts";
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), group->rank() / 2);
    EXPECT_EQ(part->name(), group->name());
    EXPECT_EQ(part->timeout(), group->timeout());
    EXPECT_THAT(part->global_ranks(), ElementsAre(group->rank() % 2, group->rank() % 2 + 2));
    EXPECT_EQ(part->group_name(), group->rank() % 2 == 0 ? "w:part:0.0" : "w:part:0.1");
    EXPECT_THAT(part->all_gather_bytes(part->id()), ::testing::Each(part->id()));
    const auto ids = group->all_gather_bytes(part->id());
    EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 2U);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(sum_over(part, group->rank()), group->rank() % 2 == 0 ? 2 : 4);
    // Parts have stores of their own, also if the parts have the same name.
    const auto named = group->partition({{0, 1}, {2, 3}}, {.timeout = 20s, .name = "n", .description = "d"});
    EXPECT_EQ(named->timeout(), 20s);
    EXPECT_EQ(named->group_name(), "n");
    EXPECT_EQ(named->group_desc(), "d");
    if (group->rank() == 0) named->store()->set("key", "");
    group->barrier();
    EXPECT_EQ(named->store()->check({"key"}), group->rank() < 2);
    group->barrier();
  });
}

TEST_P(Subgroups, PartsKeepTheGivenOrder) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto part = group->partition({{3, 0, 1}});
    ASSERT_EQ(part == nullptr, group->rank() == 2) << "it is in no part";
    if (part) {
      EXPECT_EQ(part->rank(), group->rank() == 3 ? 0 : group->rank() + 1);
      EXPECT_THAT(part->global_ranks(), ElementsAre(3, 0, 1));
      std::vector<int> all(3);
      part->all_gather(all, std::vector<int>{group->rank()});
      EXPECT_THAT(all, ElementsAre(3, 0, 1));
      const auto turned = part->partition({{2, 0}, {1}});
      if (group->rank() != 0) {
        EXPECT_THAT(turned->global_ranks(), ElementsAre(1, 3)) << "ranks of the first group";
      }
      EXPECT_EQ(sum_over(turned, group->rank()), group->rank() == 0 ? 0 : 4);
    }
    const auto crossed = group->partition({{2, 1}, {3, 0}});
    std::vector<int> x{group->rank()};
    crossed->broadcast(x, {.root = 0});
    EXPECT_EQ(x[0], group->rank() == 1 || group->rank() == 2 ? 2 : 3);
    EXPECT_EQ(sum_over(group, 1), 4);
  });
}

TEST_P(Subgroups, PartsAreChecked) {
  GetParam().run([](const ProcessGroupPtr& group) {
    EXPECT_ERROR(ValueError, group->partition({}), "no parts");
    EXPECT_ERROR(ValueError, group->partition({{0}, {}}), "no ranks");
    EXPECT_ERROR(ValueError, group->partition({{0, 1}, {1}}), "rank 1 is given twice");
    EXPECT_ERROR(ValueError, group->partition({{0, 4}}), "0 to 3");
    EXPECT_ERROR(ValueError, group->partition({{-1}}), "rank -1");
    EXPECT_EQ(group->sequence_number(), 0U);
    EXPECT_EQ(sum_over(group, 1), 4);
  });
}

TEST_P(Subgroups, PartsWithAnotherBackend) {
  GetParam().run([](const ProcessGroupPtr& group) {
    // The fake backend of every rank believes that its peers hold what it holds.
    const auto fake =
        group->partition({{1, 0}, {2, 3}}, {.backend = "fake", .options = Options{{"simulate_uniform_ranks", true}}});
    EXPECT_EQ(fake->name(), "fake");
    EXPECT_EQ(sum_over(fake, group->rank()), 2 * group->rank());
    EXPECT_EQ(fake->rank(), group->rank() < 2 ? 1 - group->rank() : group->rank() - 2);
    EXPECT_EQ(fake->global_ranks().front(), group->rank() < 2 ? 1 : 2);
    // With options alone it is this group's backend, made again.
    const auto same = group->partition({{3, 1}, {0}}, {.options = Options{}});
    ASSERT_EQ(same == nullptr, group->rank() == 2);
    if (same) {
      EXPECT_EQ(same->name(), group->name());
      EXPECT_EQ(sum_over(same, group->rank()), group->rank() == 0 ? 0 : 4);
    }
    EXPECT_ERROR(ValueError, group->partition({{0}}, {.backend = "none such"}), "none such");
    EXPECT_EQ(sum_over(group, 1), 4);
  });
}

TEST_P(Subgroups, OverlappingOnesInAnyOrder) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto left = group->split_group({0, 1, 2});
    const auto right = group->split_group({1, 2, 3});
    std::vector<int> x(1000, 1);
    std::vector<int> y(1000, 10);
    std::vector<int> z(1000, 100);
    // Ranks 1 and 2 are in both groups and start operations in opposite orders.
    std::vector<Work> works;
    if (group->rank() == 2 && right) works.push_back(right->all_reduce(y, {.async_op = true}));
    if (left) works.push_back(left->all_reduce(x, {.async_op = true}));
    if (group->rank() != 2 && right) works.push_back(right->all_reduce(y, {.async_op = true}));
    works.push_back(group->all_reduce(z, {.async_op = true}));
    for (const auto& work : works) work.wait();
    if (left) {
      EXPECT_EQ(x, std::vector<int>(1000, 3));
    }
    if (right) {
      EXPECT_EQ(y, std::vector<int>(1000, 30));
    }
    EXPECT_EQ(z, std::vector<int>(1000, 400));
  });
}

TEST_P(Subgroups, OfSubgroups) {
  GetParam().run([](const ProcessGroupPtr& group) {
    group->set_group_name("w");
    const auto upper = group->split_group({1, 2, 3});
    if (!upper) return;
    const auto outer = upper->split_group({2, 0});
    EXPECT_EQ(outer != nullptr, group->rank() != 2);
    if (!outer) return;
    EXPECT_THAT(outer->global_ranks(), ElementsAre(1, 3)) << "ranks of the first group";
    EXPECT_EQ(outer->group_name(), "w:split:[1, 2, 3]:split:[0, 2]");
    EXPECT_EQ(sum_over(outer, group->rank()), 4);
    const auto last = outer->split_group({1});
    EXPECT_EQ(last != nullptr, group->rank() == 3);
    if (last) {
      EXPECT_THAT(last->global_ranks(), ElementsAre(3));
      EXPECT_EQ(sum_over(last, 9), 9);
    }
  });
}

TEST_P(Subgroups, OutliveTheirParent) {
  GetParam().run([](const ProcessGroupPtr& world) {
    auto parent = world->split_group({0, 1, 2, 3});
    const auto child = parent->split_group({0, 1, 2});
    parent.reset();
    if (child) {
      EXPECT_EQ(sum_over(child, 1), 3);
      child->store()->set("still", "there");
    }
    world->barrier();
  });
}

TEST_P(Subgroups, BreakByThemselves) {
  run_breakable(GetParam(), [](const ProcessGroupPtr& group) {
    const auto pair = group->split_group({0, 1});
    const auto rest = group->split_group({0, 2, 3});
    if (pair) {
      if (group->rank() == 0) pair->abort("on purpose");
      meet(pair, "aborted");
      EXPECT_ERROR(AbortedError, pair->barrier(), group->rank() == 0 ? "aborted" : "on purpose");
    }
    if (rest) {
      EXPECT_EQ(sum_over(rest, 1), 3);
    }
    EXPECT_EQ(sum_over(group, 1), 4);
    meet(group, "end");
  });
}

TEST_P(Subgroups, SplitWaitsItsTurnBehindQueuedWork) {
  GetParam().run([](const ProcessGroupPtr& group) {
    std::vector<int> x(100'000, 1);
    const auto queued = group->all_reduce(x, {.async_op = true});
    const auto child = group->split_group({0, 1, 2, 3});
    EXPECT_TRUE(queued.is_completed());
    EXPECT_EQ(sum_over(child, 1), 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Subgroups, ::testing::ValuesIn(on_backends({threads(4), processes(4)})),
                         [](const auto& each) { return to_string(each.param); });

TEST(SubgroupsOfThreads, ManyAtOnce) {
  with_threads(4, [](const ProcessGroupPtr& group) {
    constexpr int many = 6;
    std::vector<ProcessGroupPtr> children;
    for (int i = 0; i < many; ++i) children.push_back(group->split_group({0, 1, 2, 3}));
    as_threads(many, [&](int i) {
      const auto& child = children[static_cast<std::size_t>(i)];
      for (int k = 0; k < 20; ++k) ASSERT_EQ(sum_over(child, i * 100 + k), 4 * (i * 100 + k));
      const auto pair = child->split_group({0, 3});
      if (pair) {
        ASSERT_EQ(sum_over(pair, i), 2 * i);
      }
    });
  });
}

// --- merging

class SplitKeys : public OnEveryArrangement {};

TEST_P(SplitKeys, DoNotAccumulateInTheStore) {
  run([](const ProcessGroupPtr& group) {
    const auto last = group->size() - 1;
    std::vector<int> all(index(group->size()));
    std::iota(all.begin(), all.end(), 0);
    group->barrier();
    const auto before = group->store()->num_keys();
    for (int i = 0; i < 100; ++i) {
      const auto child = group->split_group(i % 2 == 0 ? all : std::vector<int>{0, last});
      if (child != nullptr && i % 10 == 0) child->barrier();
    }
    group->barrier();  // every rank has dropped its last child
    EXPECT_LE(group->store()->num_keys(), before);
    group->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, SplitKeys, arrangements_of_several(), arrangement_name);

class Merge : public ::testing::TestWithParam<Ranks> {};

TEST_P(Merge, SingletonsIntoOne) {
  const TemporaryFolder folder;
  GetParam().run([&](const ProcessGroupPtr& group) {
    const auto alone = group->split_group({0});
    const auto other = group->split_group({1});
    const auto& mine = group->rank() == 0 ? alone : other;
    ASSERT_NE(mine, nullptr);
    // The processes of a launcher have no folder in common.
    const auto store = GetParam().are == Ranks::Are::launched
                           ? StorePtr(std::make_shared<PrefixStore>("merge", group->store()->clone()))
                           : std::make_shared<FileStore>(folder / "merge");
    const auto merged =
        mine->merge_remote_group(store, 2, {.timeout = 40s, .name = "merged", .description = "back together"});
    ASSERT_NE(merged, nullptr);
    EXPECT_EQ(merged->size(), 2);
    EXPECT_EQ(merged->timeout(), 40s);
    EXPECT_EQ(merged->group_name(), "merged");
    EXPECT_EQ(merged->group_desc(), "back together");
    EXPECT_EQ(merged->name(), group->name());
    EXPECT_EQ(sum_over(merged, merged->rank()), 1) << "ranks 0 and 1, whoever came first";
    EXPECT_THAT(merged->all_gather_bytes(merged->id()), ::testing::Each(merged->id()));
    EXPECT_NE(merged->id(), mine->id());
    EXPECT_EQ(sum_over(mine, 3), 3) << "what was merged is still there";
    EXPECT_EQ(sum_over(group, 1), 2);
    // The new group can be split again.
    const auto half = merged->split_group({1});
    EXPECT_EQ(half != nullptr, merged->rank() == 1);
    merged->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Merge, ::testing::ValuesIn(on_backends({threads(2), processes(2)})),
                         [](const auto& each) { return to_string(each.param); });

ProcessGroupPtr alone() {
  return new_group("thread", 60s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
}

TEST(MergeOfThreads, DefaultsOfNameAndTimeout) {
  const auto store = std::make_shared<HashStore>();
  as_threads(3, [&](int thread) {
    const auto mine = alone();
    mine->set_group_name("part");
    mine->set_group_desc("one");
    const auto merged = mine->merge_remote_group(store, 3);
    EXPECT_EQ(merged->timeout(), 30min);
    EXPECT_EQ(merged->group_name(), "part:merge");
    EXPECT_EQ(merged->group_desc(), "one:merge");
    EXPECT_EQ(sum_over(merged, thread), 3);
  });
}

TEST(MergeOfThreads, RanksInOrderOfArrival) {
  const auto store = std::make_shared<HashStore>();
  as_threads(2, [&](int thread) {
    const auto mine = alone();
    if (thread == 0) store->wait({"mergeGroupRank"}, patient);  // the other thread has joined
    EXPECT_EQ(mine->merge_remote_group(store, 2)->rank(), thread == 0 ? 1 : 0);
  });
}

TEST(MergeOfThreads, OneTooManyIsAnError) {
  const auto store = std::make_shared<HashStore>();
  as_threads(2, [&](int) { alone()->merge_remote_group(store, 2); });
  EXPECT_ERROR(ValueError, alone()->merge_remote_group(store, 2), "3 processes joined a group of 2");
}

TEST(MergeOfThreads, ArgumentErrors) {
  const auto mine = alone();
  EXPECT_ERROR(ValueError, mine->merge_remote_group(nullptr, 2), "null");
  EXPECT_ERROR(ValueError, mine->merge_remote_group(std::make_shared<HashStore>(), 0), "size 0");
}

TEST(MergeOfThreads, WaitsForTheOthersNoLongerThanItsTimeout) {
  // The timeout is shorter than that of the store.
  const auto store = std::make_shared<HashStore>();
  store->set_timeout(8s);
  const auto took =
      time_of([&] { EXPECT_THROW(alone()->merge_remote_group(store, 2, {.timeout = 300ms}), DistributedError); });
  EXPECT_GE(took, 290ms);
  EXPECT_LT(took, 5s);
}

}  // namespace
}  // namespace cohort::test
