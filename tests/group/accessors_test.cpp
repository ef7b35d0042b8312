// SPDX-License-Identifier: BSD-3-Clause
//
// What a group says about itself.
#include <cohort/backend.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(Accessors, OfAGroupWithoutBackend) {
  const auto store = std::make_shared<HashStore>();
  const ProcessGroup group(store, 3, 8);
  EXPECT_EQ(group.rank(), 3);
  EXPECT_EQ(group.size(), 8);
  EXPECT_EQ(group.name(), "undefined");
  EXPECT_EQ(group.store(), store);
  EXPECT_EQ(store->num_keys(), 0) << "making one does no I/O";
  EXPECT_EQ(group.timeout(), 30min);
  EXPECT_EQ(group.group_name(), "");
  EXPECT_EQ(group.group_desc(), "");
  EXPECT_EQ(group.sequence_number(), 0U);
  EXPECT_THAT(group.global_ranks(), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(group.device_types().empty());
  EXPECT_FALSE(group.bound_device().has_value());
  EXPECT_THROW(group.default_backend(), Error);
  EXPECT_THROW(group.capabilities(), Error);
}

TEST(Accessors, AsConstructed) {
  const ProcessGroup group(std::make_shared<HashStore>(), 0, 1, 77ms, "the id");
  EXPECT_EQ(group.timeout(), 77ms);
  EXPECT_EQ(group.id(), "the id");
  EXPECT_THROW(ProcessGroup(nullptr, 0, 0), ValueError);
  EXPECT_THROW(ProcessGroup(nullptr, 2, 2), ValueError);
  EXPECT_THROW(ProcessGroup(nullptr, -1, 2), ValueError);
}

TEST(Accessors, IdsOfGroupsWithoutStoreDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(ProcessGroup(nullptr, 0, 1).id());
  EXPECT_EQ(ids.size(), 100U);
}

TEST(Accessors, NamesCanBeSet) {
  ProcessGroup group(nullptr, 0, 1);
  group.set_group_name("dp");
  group.set_group_desc("data parallel");
  EXPECT_EQ(group.group_name(), "dp");
  EXPECT_EQ(group.group_desc(), "data parallel");
  group.add_backend(DeviceType::cpu, std::make_shared<Backend>("mine", 0, 1));
  group.set_group_name("");
  EXPECT_EQ(group.group_name(), "");
  EXPECT_EQ(group.group_desc(), "data parallel");
  EXPECT_EQ(group.name(), "mine");
}

TEST(Accessors, BoundDeviceNeedsAnIndex) {
  ProcessGroup group(nullptr, 0, 1);
  EXPECT_ERROR(Error, group.set_bound_device(Device("cuda")), "index");
  group.set_bound_device(Device("cuda:1"));
  EXPECT_EQ(group.bound_device(), Device("cuda:1"));
  group.set_bound_device(std::nullopt);
  EXPECT_FALSE(group.bound_device().has_value());
}

TEST(Accessors, TimeoutCanBeSet) {
  ProcessGroup group(nullptr, 0, 1);
  group.set_timeout(5s);
  EXPECT_EQ(group.timeout(), 5s);
  EXPECT_THROW(group.set_timeout(0ms), ValueError);
  EXPECT_THROW(group.set_timeout(-1ms), ValueError);
  EXPECT_EQ(group.timeout(), 5s);
}

TEST(Accessors, ReleasedGroupHasNothingLeft) {
  const auto group = new_group("fake", 5s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 2});
  std::vector<int> x(3);
  auto work = group->all_reduce(x, {.async_op = true});
  group->release_resources();
  EXPECT_TRUE(work.is_completed());
  EXPECT_EQ(group->store(), nullptr);
  EXPECT_EQ(group->name(), "undefined");
  EXPECT_TRUE(group->device_types().empty());
  EXPECT_THROW(group->default_backend(), Error);
  EXPECT_THROW(group->all_reduce(x), Error);
  EXPECT_THROW(group->split_group({0}), Error);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 2);
}

class AccessorsOf : public ::testing::TestWithParam<Ranks> {};

TEST_P(AccessorsOf, ARealGroup) {
  const auto ranks = GetParam();
  ranks.run(
      [&](const ProcessGroupPtr& group) {
        EXPECT_EQ(group->size(), ranks.size);
        EXPECT_EQ(group->name(), ranks.are == Ranks::Are::threads ? "thread" : ranks.backend);
        EXPECT_EQ(group->default_backend()->name(), group->name());
        EXPECT_EQ(group->default_backend()->rank(), group->rank());
        EXPECT_EQ(group->default_backend()->size(), group->size());
        EXPECT_EQ(group->timeout(), 45s);
        EXPECT_EQ(group->group_name(), "");
        EXPECT_EQ(group->group_desc(), "");
        EXPECT_FALSE(group->id().empty());
        EXPECT_THAT(group->all_gather_bytes(group->id()), ::testing::Each(group->id()));
        std::vector<std::string> expected;
        for (int r = 0; r < ranks.size; ++r) expected.push_back(std::to_string(r));
        EXPECT_EQ(group->all_gather_bytes(std::to_string(group->rank())), expected);
        group->store()->set("of/" + std::to_string(group->rank()), "1");
        for (int r = 0; r < ranks.size; ++r) EXPECT_EQ(group->store()->get("of/" + std::to_string(r)), "1");
        group->barrier();
      },
      45s);
}

INSTANTIATE_TEST_SUITE_P(Groups, AccessorsOf, ::testing::ValuesIn(on_backends({threads(3), processes(2)})),
                         [](const auto& each) { return to_string(each.param); });

}  // namespace
}  // namespace cohort::test
