// SPDX-License-Identifier: BSD-3-Clause
//
// Groups from the environment, and several groups at the same time.
#include <cohort/group_registry.h>
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <string>
#include <vector>

#include "store/socket.h"
#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

/// Starts ranks like a launcher that sets only torchrun's variables.
void from_environment(int size, const std::function<void()>& body) {
  const auto port = bound_endpoint(listen_on(Endpoint::tcp("127.0.0.1", 0)).get()).port;
  as_processes(size, [&](int rank) {
    ::clearenv();
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    body();
    return 0;
  });
}

TEST(NewGroup, FromTheEnvironment) {
  from_environment(2, [] {
    const auto group = new_group("shm", 30s, "cpu");
    EXPECT_EQ(group->rank(), std::atoi(::getenv("RANK")));
    EXPECT_EQ(group->size(), 2);
    EXPECT_EQ(group->timeout(), 30s);
    EXPECT_EQ(group->name(), "shm");
    EXPECT_EQ(group->group_name(), "");
    EXPECT_EQ(group->group_desc(), "");
    EXPECT_THAT(group->all_gather_bytes(group->id()), ::testing::Each(group->id()));

    EXPECT_EQ(resolve_group(group->id()), group);
    EXPECT_ERROR(Error, resolve_group(""), "no group");
    EXPECT_ERROR(Error, resolve_group("shm"), "no group");

    std::vector<int> x{group->rank() + 1};
    group->all_reduce(x);
    EXPECT_EQ(x[0], 3);
    group->barrier();
  });
}

TEST(NewGroup, SeveralFromTheEnvironment) {
  from_environment(2, [] {
    const auto first = new_group("shm", 30s, "cpu");
    const auto second = new_group("shm", 30s, "cpu", {}, {.name = "another"});
    const auto third = new_group("shm", 20s, "cpu");
    std::set<std::string> ids;
    for (const auto& group : {first, second, third}) {
      ids.insert(group->id());
      EXPECT_THAT(group->all_gather_bytes(group->id()), ::testing::Each(group->id()));
    }
    EXPECT_EQ(ids.size(), 3U);
    // The ranks use the groups in opposite orders, which would be an error within one group.
    std::vector<int> x{1};
    std::vector<int> y{10};
    auto& one = first->rank() == 0 ? first : third;
    auto& other = first->rank() == 0 ? third : first;
    auto early = one->all_reduce(one == first ? x : y, {.async_op = true});
    other->all_reduce(other == first ? x : y);
    early.wait();
    EXPECT_EQ(x[0], 2);
    EXPECT_EQ(y[0], 20);
    second->barrier();
  });
}

TEST(NewGroup, ReturnsWhenAllHaveCome) {
  const auto store = std::make_shared<HashStore>();
  const auto took = time_of([&] {
    EXPECT_THROW(new_group("thread", 200ms, "cpu", {}, {.store = store, .rank = 0, .size = 2}), DistributedError);
  });
  EXPECT_GE(took, 190ms);
  EXPECT_LT(took, 5s);
}

class SeveralGroups : public ::testing::TestWithParam<Ranks> {};

TEST_P(SeveralGroups, OfOneStoreHaveTheirOwnTraffic) {
  GetParam().run([](const ProcessGroupPtr& parent) {
    const auto store = parent->store();
    const auto backend = parent->name();
    std::vector<ProcessGroupPtr> groups;
    for (int i = 0; i < 3; ++i) {
      groups.push_back(
          new_group(backend, patient, "cpu", {}, {.store = store, .rank = parent->rank(), .size = parent->size()}));
    }
    // Each group runs a different operation at the same time.
    const int size = parent->size();
    std::vector<int> sum(1000, parent->rank());
    std::vector<int> root(7, parent->rank());
    std::vector<int> all(static_cast<std::size_t>(size), -1);
    const std::vector<int> mine{parent->rank() * 10};
    std::vector<Work> works{groups[2]->all_gather(all, mine, {.async_op = true}),
                            groups[0]->all_reduce(sum, {.async_op = true}),
                            groups[1]->broadcast(root, {.root = size - 1, .async_op = true})};
    for (const auto& work : works) work.wait();
    EXPECT_EQ(sum, std::vector<int>(1000, size * (size - 1) / 2));
    EXPECT_EQ(root, std::vector<int>(7, size - 1));
    for (int r = 0; r < size; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r * 10);
    // Aborting one group does not affect the others. The barrier makes sure that no rank is still in the broadcast of
    // that group, which would fail.
    parent->barrier();
    groups[1]->abort("not needed");
    groups.erase(groups.begin() + 1);
    for (const auto& group : groups) group->barrier();
  });
}

TEST_P(SeveralGroups, ConcurrentCreationsTakeAName) {
  GetParam().run([](const ProcessGroupPtr& parent) {
    // A call that waits would block other calls on the same store handle, so each thread has a clone.
    as_threads(3, [&](int thread) {
      const auto group = new_group(parent->name(), patient, "cpu", {},
                                   {.store = parent->store()->clone(),
                                    .rank = parent->rank(),
                                    .size = parent->size(),
                                    .name = "thread-" + std::to_string(thread)});
      std::vector<int> x{thread};
      group->all_reduce(x);
      EXPECT_EQ(x[0], thread * parent->size());
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, SeveralGroups, ::testing::ValuesIn(on_backends({threads(3), processes(2)})),
                         [](const auto& each) { return to_string(each.param); });

TEST(NewGroup, OneBackendForEachDevice) {
  const auto group = new_group("cpu:fake,cuda:fake", 10s, "cuda:0", {{"cpu", Options{{"error_on_collective", true}}}},
                               {.store = std::make_shared<HashStore>(), .rank = 1, .size = 4});
  EXPECT_EQ(group->name(), "fake");
  EXPECT_THAT(group->device_types(), ::testing::ElementsAre(DeviceType::cpu, DeviceType::cuda));
  EXPECT_NE(group->backend("cpu"), group->backend("cuda:0"));
  EXPECT_EQ(group->default_backend(), group->backend("cuda"));
  EXPECT_EQ(group->bound_device(), Device("cuda:0"));
  EXPECT_EQ(group->timeout(), 10s);

  std::vector<float> x(4);
  group->all_reduce(Buffer(x.data(), DType::f32, {4}, {}, "cuda:0"));
  group->barrier();
  group->barrier({.device = Device("cuda")});
  EXPECT_ERROR(BackendError, group->all_reduce(x), "error_on_collective");
  EXPECT_ERROR(BackendError, group->barrier({.device = Device("cpu")}), "error_on_collective");
}

}  // namespace
}  // namespace cohort::test
