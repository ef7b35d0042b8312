// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/backend.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

struct Request {
  StorePtr store;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
  Device device;
  Options options;
};

/// Registers `name` and keeps the arguments that the factory is called with. Backends are never unregistered, so each
/// test has its own name.
std::shared_ptr<std::vector<Request>> count_requests(const std::string& name) {
  auto requests = std::make_shared<std::vector<Request>>();
  register_backend(name, [requests](const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                    const Device& device, const Options& options) {
    requests->push_back({store, rank, size, timeout, device, options});
    auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout);
    group->add_backend(device.type, std::make_shared<Backend>("counting", rank, size));
    return group;
  });
  return requests;
}

TEST(BackendRegistry, FactorySeesWhatNewGroupWasGiven) {
  const auto requests = count_requests("counting");
  const auto store = std::make_shared<HashStore>();
  const auto group =
      new_group("counting", 1234ms, "cuda:3", {{"level", 7}, {"fast", true}}, {.store = store, .rank = 2, .size = 5});
  ASSERT_EQ(requests->size(), 1U);
  const auto& request = requests->front();
  EXPECT_EQ(request.rank, 2);
  EXPECT_EQ(request.size, 5);
  EXPECT_EQ(request.timeout, 1234ms);
  EXPECT_EQ(request.device, Device("cuda:3"));
  EXPECT_EQ(request.options.entries().size(), 2U);
  OptionReader read(request.options, "counting");
  EXPECT_EQ(read.get("level", 0), 7);
  EXPECT_TRUE(read.get("fast", false));

  EXPECT_EQ(group->rank(), 2);
  EXPECT_EQ(group->size(), 5);
  EXPECT_EQ(group->name(), "counting");
  EXPECT_EQ(group->bound_device(), Device("cuda:3"));

  // The store is the given one with a prefix.
  request.store->set("greeting", "hello");
  EXPECT_FALSE(store->check({"greeting"}));
  EXPECT_GT(store->num_keys(), 0);

  new_group("counting", 1s, "cpu", {}, {.store = store, .rank = 2, .size = 5});
  ASSERT_EQ(requests->size(), 2U);
  EXPECT_FALSE(requests->back().store->check({"greeting"})) << "each creation has keys of its own";
  EXPECT_TRUE(requests->back().options.empty());
}

TEST(BackendRegistry, FactoryOfOneDeviceSeesThatDevicesOptions) {
  const auto requests = count_requests("per-device");
  new_group("cpu:per-device,cuda:per-device", 1s, "cuda:1",
            {{"cuda", Options{{"streams", 2}}}, {"cpu", Options{{"threads", 3}}}},
            {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
  ASSERT_EQ(requests->size(), 2U);
  EXPECT_EQ((*requests)[0].device, Device("cpu"));
  EXPECT_TRUE((*requests)[0].options.contains("threads"));
  EXPECT_EQ((*requests)[1].device, Device("cuda:1"));
  EXPECT_TRUE((*requests)[1].options.contains("streams"));
  (*requests)[0].store->set("key", "of cpu");
  EXPECT_FALSE((*requests)[1].store->check({"key"}));
}

/// As in the example in backend.h, the factory gives no id.
TEST(BackendRegistry, GroupsOfOnesOwnBackendHaveOneIdOnAllRanks) {
  register_backend("of-ones-own", [](const StorePtr& store, int rank, int size, auto, const Device& device, auto&) {
    auto group = std::make_shared<ProcessGroup>(store, rank, size);
    group->add_backend(device.type, std::make_shared<Backend>("of-ones-own", rank, size));
    return group;
  });
  const auto store = std::make_shared<HashStore>();
  std::vector<ProcessGroupPtr> groups;
  for (int rank = 0; rank < 2; ++rank) {
    groups.push_back(new_group("of-ones-own", 7s, "cpu", {}, {.store = store, .rank = rank, .size = 2}));
  }
  EXPECT_EQ(groups[0]->id(), groups[1]->id());
  EXPECT_EQ(groups[0]->timeout(), 7s) << "what new_group was given";
}

TEST(BackendRegistry, NamesAreListed) {
  count_requests("zz-listed");
  const auto names = backend_names();
  EXPECT_THAT(names, ::testing::IsSupersetOf({"fake", "shm", "thread", "zz-listed"}));
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(BackendRegistry, NamesThatAreTakenOrMalformedAreRefused) {
  const ProcessGroupFactory factory = [](auto&&...) { return ProcessGroupPtr(); };
  register_backend("taken", factory);
  EXPECT_ERROR(ValueError, register_backend("taken", factory), "taken");
  EXPECT_ERROR(ValueError, register_backend("shm", factory), "shm");
  EXPECT_ERROR(ValueError, register_backend("", factory), "name");
  EXPECT_ERROR(ValueError, register_backend("cpu:mine", factory), "cpu:mine");
  EXPECT_ERROR(ValueError, register_backend("empty", nullptr), "empty");
}

TEST(BackendRegistry, RegisteringFromManyThreads) {
  as_threads(8, [](int rank) {
    for (int i = 0; i < 20; ++i) {
      count_requests("from-thread-" + std::to_string(rank) + "-" + std::to_string(i));
      EXPECT_ERROR(ValueError, new_group("still-unknown", 1s, "cpu"), "still-unknown");
    }
  });
  EXPECT_GE(backend_names().size(), 160U);
}

/// Runs in a child process, because the environment belongs to the whole process.
int in_empty_environment(const std::function<void()>& body) {
  return Process([&] {
           ::clearenv();
           body();
           return 0;
         })
      .wait();
}

TEST(BackendRegistry, UnknownNameIsRefusedBeforeAnythingElse) {
  EXPECT_EQ(in_empty_environment([] {
              const auto took = time_of([] {
                EXPECT_ERROR(ValueError, new_group("nonesuch", 60s, "cpu"), "nonesuch");
                EXPECT_ERROR(ValueError, new_group("nonesuch", 60s, "cpu"), "shm");
                EXPECT_ERROR(ValueError, new_group("cpu:shm,cuda:nonesuch", 60s, "cpu"), "nonesuch");
                EXPECT_ERROR(ValueError, new_group("", 60s, "cpu"), "unknown backend");
              });
              EXPECT_LT(took, 1s);
            }),
            0);
  const auto store = std::make_shared<HashStore>();
  EXPECT_THROW(new_group("nonesuch", 60s, "cpu", {}, {.store = store, .rank = 0, .size = 2}), ValueError);
  EXPECT_EQ(store->num_keys(), 0);
}

TEST(BackendRegistry, EmptyEnvironmentMakesAGroupOfOne) {
  EXPECT_EQ(in_empty_environment([] { EXPECT_EQ(new_group("shm", 60s, "cpu")->size(), 1); }), 0);
}

TEST(BackendRegistry, IncompleteEnvironmentNamesTheVariable) {
  EXPECT_EQ(in_empty_environment([] {
              ::setenv("WORLD_SIZE", "2", 1);  // NOLINT(concurrency-mt-unsafe): the child has one thread
              EXPECT_ERROR(ValueError, new_group("shm", 60s, "cpu"), "RANK");
            }),
            0);
}

TEST(BackendRegistry, OptionsNobodyKnowsAreRefused) {
  const GroupMembers alone{.store = std::make_shared<HashStore>(), .rank = 0, .size = 1};
  EXPECT_ERROR(KeyError, new_group("shm", 5s, "cpu", {{"speed", 9}}, alone), "speed");
  EXPECT_ERROR(KeyError, new_group("thread", 5s, "cpu", {{"speed", 9}}, alone), "speed");
  EXPECT_ERROR(KeyError, new_group("fake", 5s, "cpu", {{"error_on_colective", true}}, alone), "error_on_collective");
  EXPECT_ERROR(TypeError, new_group("fake", 5s, "cpu", {{"error_on_collective", "yes"}}, alone), "error_on_collective");
  EXPECT_ERROR(KeyError, new_group("cpu:fake,cuda:fake", 5s, "cpu", {{"error_on_collective", true}}, alone),
               "error_on_collective");
}

TEST(BackendRegistry, DevicesThatMakeNoSenseAreRefused) {
  const GroupMembers alone{.store = std::make_shared<HashStore>(), .rank = 0, .size = 1};
  EXPECT_ERROR(ValueError, new_group("shm", 5s, "tpu", {}, alone), "tpu");
  EXPECT_ERROR(ValueError, new_group("shm", 5s, "cuda:x", {}, alone), "cuda:x");
  EXPECT_ERROR(ValueError, new_group("shm", 5s, "cuda:0", {}, alone), "cpu");
  EXPECT_ERROR(ValueError, new_group("tpu:shm", 5s, "cpu", {}, alone), "tpu");
  EXPECT_ERROR(ValueError, new_group("shm,fake", 5s, "cpu", {}, alone), "one backend");
  EXPECT_ERROR(ValueError, new_group("cpu:fake,cpu:fake", 5s, "cpu", {}, alone), "one backend");
  EXPECT_ERROR(Error, new_group("cpu:fake", 5s, "cuda", {}, alone), "cuda");
}

TEST(BackendRegistry, MembersThatMakeNoSenseAreRefused) {
  const auto store = std::make_shared<HashStore>();
  EXPECT_ERROR(ValueError, new_group("fake", 5s, "cpu", {}, {.store = store, .rank = 0}), "together");
  EXPECT_ERROR(ValueError, new_group("fake", 5s, "cpu", {}, {.rank = 0, .size = 1}), "together");
  EXPECT_ERROR(ValueError, new_group("fake", 5s, "cpu", {}, {.store = store, .rank = 3, .size = 3}), "3");
  EXPECT_ERROR(ValueError, new_group("fake", 5s, "cpu", {}, {.store = store, .rank = -1, .size = 3}), "-1");
  EXPECT_ERROR(ValueError, new_group("fake", 5s, "cpu", {}, {.store = store, .rank = 0, .size = 0}), "0");
  EXPECT_ERROR(ValueError, new_group("fake", 0s, "cpu", {}, {.store = store, .rank = 0, .size = 1}), "timeout");
}

TEST(BackendRegistry, FactoryThatMakesNothingOrThrows) {
  register_backend("makes-nothing", [](auto&&...) { return ProcessGroupPtr(); });
  register_backend("throws", [](auto&&...) -> ProcessGroupPtr { throw BackendError("no such card"); });
  const GroupMembers alone{.store = std::make_shared<HashStore>(), .rank = 0, .size = 1};
  EXPECT_ERROR(Error, new_group("makes-nothing", 5s, "cpu", {}, alone), "makes-nothing");
  EXPECT_ERROR(BackendError, new_group("throws", 5s, "cpu", {}, alone), "no such card");
}

}  // namespace
}  // namespace cohort::test
