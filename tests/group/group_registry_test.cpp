// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/current_group.h>
#include <cohort/group_registry.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

ProcessGroupPtr fake_group() {
  return new_group("fake", 5s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 2});
}

/// Leaves the registry of the process as it was.
class GroupRegistry : public ::testing::Test {
 protected:
  void TearDown() override { unregister_all_groups(); }
};

TEST_F(GroupRegistry, ResolvesTheVeryObject) {
  const auto dp = fake_group();
  const auto tp = fake_group();
  register_group("dp", dp);
  register_group("tp", tp);
  EXPECT_EQ(resolve_group("dp"), dp);
  EXPECT_EQ(resolve_group("tp"), tp);
  register_group("dp again", dp);
  EXPECT_EQ(resolve_group("dp again"), dp);
}

TEST_F(GroupRegistry, UnknownTakenAndGoneAreDifferentErrors) {
  auto group = fake_group();
  EXPECT_ERROR(Error, resolve_group("dp"), "no group is registered as \"dp\"");
  register_group("dp", group);
  EXPECT_ERROR(Error, register_group("dp", fake_group()), "\"dp\" is taken");
  EXPECT_ERROR(Error, register_group("dp", group), "\"dp\" is taken");
  group.reset();
  EXPECT_ERROR(Error, resolve_group("dp"), "\"dp\" is gone");
  const auto next = fake_group();
  register_group("dp", next);
  EXPECT_EQ(resolve_group("dp"), next) << "the name of a group that is gone is free";
  EXPECT_ERROR(ValueError, register_group("nothing", nullptr), "null");
}

TEST_F(GroupRegistry, KeepsNoGroupAlive) {
  auto group = fake_group();
  const std::weak_ptr<ProcessGroup> watch = group;
  register_group("dp", group);
  EXPECT_EQ(resolve_group("dp"), group);
  group.reset();
  EXPECT_TRUE(watch.expired());
}

TEST_F(GroupRegistry, Unregister) {
  const auto group = fake_group();
  register_group("dp", group);
  register_group("tp", group);
  EXPECT_TRUE(unregister_group("dp"));
  EXPECT_FALSE(unregister_group("dp"));
  EXPECT_ERROR(Error, resolve_group("dp"), "no group");
  EXPECT_EQ(resolve_group("tp"), group);
  unregister_all_groups();
  EXPECT_ERROR(Error, resolve_group("tp"), "no group");
  EXPECT_EQ(resolve_group(group->id()), group) << "ids are not registered, and not unregistered";
}

TEST_F(GroupRegistry, EveryGroupIsFoundByItsId) {
  auto group = fake_group();
  const auto id = group->id();
  EXPECT_EQ(resolve_group(id), group);
  auto child = group->split_group({0});
  EXPECT_EQ(resolve_group(child->id()), child);
  group.reset();
  EXPECT_ERROR(Error, resolve_group(id), "no group");
}

TEST_F(GroupRegistry, AnIdOfSeveralRanksInOneProcessIsAmbiguous) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    group->barrier();
    EXPECT_ERROR(Error, resolve_group(group->id()), "several ranks");
    group->barrier();
  });
}

/// A thread that resolves an id must not destroy a group while it holds the registry's lock. Runs in a child process,
/// because a failure would hang.
TEST_F(GroupRegistry, ResolvingWhileRanksLeave) {
  Process child([] {
    ::alarm(20);
    for (int i = 0; i < 100; ++i) {
      std::promise<std::string> id;
      std::atomic<bool> is_resolving{false};
      std::atomic<bool> is_over{false};
      std::thread resolver([&] {
        const auto wanted = id.get_future().get();
        while (!is_over) {
          try {
            resolve_group(wanted);  // succeeds when only one rank is left
          } catch (const Error&) {
            is_resolving = true;  // several ranks, or none
          }
        }
      });
      with_threads(2, [&](const ProcessGroupPtr& group) {
        group->barrier();
        if (group->rank() == 0) id.set_value(group->id());
        while (!is_resolving) std::this_thread::yield();
        if (group->rank() == 1) is_over = true;
      });
      resolver.join();
    }
    return 0;
  });
  EXPECT_EQ(child.wait(), 0) << "128 + 14: it hung";
}

TEST_F(GroupRegistry, ScopesAreIsolated) {
  const auto outside = fake_group();
  const auto inside = fake_group();
  register_group("dp", outside);
  {
    const GroupRegistryScope scope;
    EXPECT_ERROR(Error, resolve_group("dp"), "no group");
    register_group("dp", inside);
    EXPECT_EQ(resolve_group("dp"), inside);
    {
      const GroupRegistryScope nested;
      EXPECT_THROW(resolve_group("dp"), Error);
    }
    std::thread([&] { EXPECT_EQ(resolve_group("dp"), outside) << "other threads keep the process's"; }).join();
    // A thread that works on behalf of this one shares its registry.
    std::thread([&] {
      const GroupRegistryScope same(scope);
      EXPECT_EQ(resolve_group("dp"), inside);
      register_group("from there", inside);
    }).join();
    EXPECT_EQ(resolve_group("from there"), inside);
    unregister_all_groups();
  }
  EXPECT_EQ(resolve_group("dp"), outside);
}

TEST_F(GroupRegistry, FindsGroupsByRanks) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    const std::vector<int> both{0, 1};
    EXPECT_EQ(find_group_of_ranks(std::vector<int>{1, 0}), nullptr);
    group->barrier();
    EXPECT_ERROR(Error, find_group_of_ranks(both), "2 groups of this process have these ranks");
    group->barrier();
    {
      const ProcessGroupGuard current(group);
      EXPECT_EQ(find_group_of_ranks(both), group);
    }
    const GroupRegistryScope names;
    register_group("both", group);
    EXPECT_EQ(find_group_of_ranks(both), group);
    const auto first = group->split_group({0});
    EXPECT_TRUE(first == nullptr || find_group_of_ranks(std::vector<int>{0}) == first);
    group->barrier();
  });
}

TEST_F(GroupRegistry, ThreadsAsRanksResolveTheirOwn) {
  with_threads(4, [](const ProcessGroupPtr& group) {
    const GroupRegistryScope scope;
    register_group("world", group);
    const auto pair = group->split_group({0, 1});
    if (pair) register_group("pair", pair);
    for (int i = 0; i < 50; ++i) {
      std::vector<int> x{group->rank() + i};
      resolve_group("world")->all_reduce(x);
      ASSERT_EQ(x[0], 6 + 4 * i);
      if (!pair) continue;
      std::vector<int> y{group->rank()};
      resolve_group("pair")->all_reduce(y);
      ASSERT_EQ(y[0], 1);
    }
    EXPECT_EQ(resolve_group("world"), group);
    group->barrier();
  });
  EXPECT_ERROR(Error, resolve_group("world"), "no group");
}

}  // namespace
}  // namespace cohort::test
