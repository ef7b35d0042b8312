// SPDX-License-Identifier: BSD-3-Clause
//
// What is particular to backend gloo. What all backends have in common is in tests/conformance.
#include <dlfcn.h>

#include <thread>

#include "backends/common/engine_ranks.h"
#include "backends/cuda/driver.h"
#include "core/module.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

GroupMembers alone() {
  return {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1};
}

class GlooGroup : public NeedsGloo {};

TEST_F(GlooGroup, RefusesAnyOption) {
  EXPECT_ERROR(AssertionError, new_group("gloo", 5s, "cpu", {{"threads", 2}}, alone()), "no options");
}

TEST_F(GlooGroup, SaysWhatCudaMemoryNeeds) {
  if (const auto missing = cuda::system_driver().missing; missing.empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_ERROR(ValueError, new_group("gloo", 5s, "cuda:0", {}, alone()), "gloo for cuda:0: there is no NVIDIA driver");
}

TEST_F(GlooGroup, TransportsThatItDoesNotHaveAreRefused) {
  ::setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS", 1);
  EXPECT_ERROR(ValueError, new_group("gloo", 5s, "cpu", {}, alone()), "TCP_TLS");
  ::setenv("GLOO_DEVICE_TRANSPORT", "TCP", 1);
  EXPECT_NO_THROW(new_group("gloo", 5s, "cpu", {}, alone()));
  ::unsetenv("GLOO_DEVICE_TRANSPORT");
}

TEST_F(GlooGroup, UsesTheInterfaceThatIsNamed) {
  const EngineRanks ranks("gloo", 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    ::setenv("GLOO_SOCKET_IFNAME", "nonesuch0,lo", 1);
    const auto group = ranks.join(rank);
    std::int32_t sum = 1;
    group->all_reduce(std::span(&sum, 1));
    return sum == 2 ? 0 : 1;
  }),
              ::testing::Each(0));
}

TEST_F(GlooGroup, AnInterfaceThatIsNotThereIsAnErrorThatListsThoseThatAre) {
  const EngineRanks ranks("gloo", 2);
  ranks.run([&](int rank) {
    ::setenv("GLOO_SOCKET_IFNAME", "nonesuch0", 1);
    const auto message = message_of<ValueError>([&] { ranks.join(rank, 5s); });
    EXPECT_THAT(message, ::testing::AllOf(HasSubstr("nonesuch0"), HasSubstr("lo")));
    return 0;
  });
}

TEST_F(GlooGroup, ARankThatDoesNotComeIsNamedInTime) {
  const EngineRanks ranks("gloo", 3);
  EXPECT_THAT(ranks.run([&](int rank) {
    if (rank == 2) return 0;
    const auto took =
        time_of([&] { EXPECT_ERROR(OperationTimeoutError, ranks.join(rank, 700ms), "rank 2 did not join"); });
    EXPECT_LT(took, 5s);
    return 0;
  }),
              ::testing::Each(0));
}

TEST_F(GlooGroup, TheLastMessageOfARankThatLeavesArrives) {
  // A receiver looks every 100 ms whether the connection is still there: about then, the message and the end come
  // together.
  const EngineRanks ranks("gloo", 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    for (int trial = 0; trial < 20; ++trial) {
      auto group = ranks.join(rank);
      std::int32_t number = rank == 0 ? trial : -1;
      group->barrier();
      if (rank == 0) {
        std::this_thread::sleep_for(90ms + std::chrono::milliseconds(trial));
        group->send(std::span(&number, 1), 1);
      } else {
        group->recv(std::span(&number, 1), 0);
      }
      group.reset();
      if (number != trial) return 1;
    }
    return 0;
  }),
              ::testing::Each(0));
}

TEST_F(GlooGroup, AKilledRankIsNoticedAndNamed) {
  expect_loss_is_noticed(EngineRanks("gloo", 3), 3, 1, 2s);
}

TEST_F(GlooGroup, DifferentOperationsAreAMismatchAndNotTheEndOfTheProcess) {
  // Gloo itself would write past the end of the shorter buffer, or end the process.
  const EngineRanks ranks("gloo", 3);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    std::vector<float> x(rank == 2 ? 1000 : 10);
    const auto message = message_of<MismatchError>([&] { group->all_reduce(x, {.timeout = 500ms}); });
    EXPECT_THAT(message, ::testing::AllOf(HasSubstr("40 bytes"), HasSubstr("4000 bytes"), HasSubstr("rank 2")));
    return 0;
  }),
              ::testing::Each(0));
}

TEST_F(GlooGroup, AfterAFailureAnotherGroupIsMadeInTheSameProcess) {
  const EngineRanks ranks("gloo", 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    auto broken = ranks.join(rank);
    if (rank == 0) broken->abort("to begin again");
    EXPECT_ERROR(AbortedError, for (;;) broken->barrier(), "to begin again");
    broken.reset();
    const auto group = ranks.join(rank);
    std::int32_t sum = 1;
    group->all_reduce(std::span(&sum, 1));
    return sum == 2 ? 0 : 1;
  }),
              ::testing::Each(0));
}

// Nothing may load the module before the child processes have the other Gloo.
TEST(ModuleTest, AnEngineIsBoundToItsOwnLibraryWhereTheProgramHasAnother) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
#endif
  const EngineRanks ranks("gloo", 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    EXPECT_NE(::dlopen(COHORT_ANOTHER_GLOO, RTLD_NOW | RTLD_GLOBAL), nullptr);
    const auto names = backend_names();
    if (std::find(names.begin(), names.end(), "gloo") == names.end()) return 0;
    const auto group = ranks.join(rank);
    std::int32_t sum = 1;
    group->all_reduce(std::span(&sum, 1));
    return sum == 2 ? 0 : 1;
  }),
              ::testing::Each(0));
}

TEST(ModuleTest, OneThatIsNotThereSaysWhereItWasLookedFor) {
  const auto module = Module::of_engine("nonesuch", "/first:/second");
  EXPECT_FALSE(module.is_loaded());
  EXPECT_THAT(module.why_not(),
              ::testing::AllOf(HasSubstr("/first/libcohort_nonesuch.so"), HasSubstr("/second/libcohort_nonesuch.so")));
  EXPECT_EQ(module.find<void (*)()>("anything"), nullptr);
}

}  // namespace
}  // namespace cohort::test
