// SPDX-License-Identifier: BSD-3-Clause
//
// Failures: late peers, errors that NCCL reports, aborts. The caller gets an error and the process continues.
#include <atomic>
#include <thread>

#include "backends/nccl/nccl_test.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class NcclFaults : public NcclTest {
 protected:
  void* user = gpu.make_stream("user");

  /// Callers get their errors before the communicator is aborted.
  int aborts(const ProcessGroupPtr& group) {
    group->wait_for_pending();
    return gpu.count("abort");
  }
  /// A new group in the same process, after the old one broke.
  void expect_new_group_works() {
    gpu.hold_kernels(false);
    const auto group = alone();
    OnDevice<float> x({3});
    group->all_reduce(x.buffer()).wait(30s);
    EXPECT_EQ(x.values()[0], 3);
  }
};

TEST_F(NcclFaults, MissedDeadlineIsRaisedInTheCaller) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  Work work;
  Work behind;
  const auto took = time_of([&] {
    work = group->all_reduce(x.buffer(), {.async_op = true, .timeout = 100ms, .stream = user});
    behind = group->broadcast(x.buffer(), {.async_op = true, .stream = user});
    const auto text = message_of<OperationTimeoutError>([&] { work.wait(30s); });
    EXPECT_THAT(text, ::testing::HasSubstr("all_reduce #1 did not end within 100 ms"));
    EXPECT_THAT(text, ::testing::HasSubstr(group->id()));
  });
  EXPECT_GE(took, 99ms);
  EXPECT_LT(took, 5s) << "the watchdog looks sooner when a deadline comes";
  EXPECT_THROW(work.wait(), OperationTimeoutError) << "each time";
  EXPECT_THROW(behind.wait(30s), OperationTimeoutError) << "what was behind it has the same cause";
  EXPECT_THROW(group->barrier(), OperationTimeoutError) << "and so has what comes later";
  EXPECT_EQ(aborts(group), 1);
  expect_new_group_works();
}

TEST_F(NcclFaults, ErrorThatNcclReportsEndsWhatIsUnderWay) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.stream = user});
  gpu.report(nccl::Result::remote_error);
  EXPECT_ERROR(PeerLostError, work.wait(30s), "remote process exited");
  EXPECT_ERROR(PeerLostError, group->all_reduce(x.buffer()), "the last words");
  EXPECT_EQ(aborts(group), 1);
  EXPECT_NE(work.exception(), nullptr);
  expect_new_group_works();
}

TEST_F(NcclFaults, ErrorAtTheCallIsThrownThere) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.report(nccl::Result::system_error);
  EXPECT_ERROR(BackendError, group->all_reduce(x.buffer()), "ncclAllReduce: told to fail: the last words");
  EXPECT_ERROR(BackendError, group->all_reduce(x.buffer(), {.async_op = true}).wait(), "ncclAllReduce");
  EXPECT_EQ(gpu.count("abort"), 1);
  expect_new_group_works();
}

TEST_F(NcclFaults, LaunchThatDoesNotGetThroughEndsInTime) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_launches(true);
  const auto took = time_of(
      [&] { EXPECT_ERROR(OperationTimeoutError, group->all_reduce(x.buffer(), {.timeout = 100ms}), "ncclAllReduce"); });
  EXPECT_GE(took, 99ms);
  EXPECT_LT(took, 5s);
  EXPECT_EQ(gpu.count("abort"), 1);
  gpu.hold_launches(false);
  expect_new_group_works();
}

TEST_F(NcclFaults, LaunchInProgressIsWaitedForBeforeTheEvent) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.clear_log();
  gpu.hold_launches(true);
  std::thread later([&] {
    while (gpu.count("all_reduce user") == 0) std::this_thread::yield();
    EXPECT_EQ(gpu.count("event_record user"), 0) << "it would say done before anything runs";
    gpu.hold_launches(false);
  });
  group->all_reduce(x.buffer(), {.stream = user}).wait(30s);
  later.join();
  EXPECT_EQ(gpu.count("event_record user"), 1);
}

TEST_F(NcclFaults, RanksThatDoNotComeEndTheCreationInTime) {
  const auto store = std::make_shared<HashStore>();
  const auto took = time_of([&] {
    EXPECT_ERROR(OperationTimeoutError, make(store, 0, 2, {}, 100ms), "the 2 ranks of the NCCL communicator");
    EXPECT_ERROR(OperationTimeoutError, make(std::make_shared<HashStore>(), 1, 2, {}, 100ms), "rank 0 did not join");
  });
  EXPECT_LT(took, 5s);
  EXPECT_EQ(gpu.count("abort"), 1);
  expect_new_group_works();
}

TEST_F(NcclFaults, AbortFreesThoseWhoWait) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.async_op = true});
  std::thread waiting([&] { EXPECT_ERROR(AbortedError, work.wait(30s), "enough"); });
  group->abort("enough");
  waiting.join();
  EXPECT_ERROR(AbortedError, group->all_reduce(x.buffer()), "enough");
  EXPECT_EQ(gpu.count("abort"), 1);
  expect_new_group_works();
}

TEST_F(NcclFaults, AbortFreesALaunchThatDoesNotGetThrough) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_launches(true);
  std::thread stuck([&] { EXPECT_ERROR(AbortedError, group->all_reduce(x.buffer(), {.stream = user}), "enough"); });
  while (gpu.count("all_reduce user") == 0) std::this_thread::yield();
  group->abort("enough");
  stuck.join();
  gpu.hold_launches(false);
  expect_new_group_works();
}

TEST_F(NcclFaults, ShutdownIsInGoodOrder) {
  const auto group = alone();
  OnDevice<float> x({1});
  group->all_reduce(x.buffer());
  group->shutdown();
  EXPECT_EQ(gpu.count("finalize"), 1);
  EXPECT_EQ(gpu.count("destroy"), 1);
  EXPECT_EQ(gpu.count("abort"), 0);
  EXPECT_THROW(group->all_reduce(x.buffer()), AbortedError);
}

TEST_F(NcclFaults, GroupMayGoFirst) {
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  Work work;
  std::thread later;
  {
    const auto group = alone();
    work = group->all_reduce(x.buffer(), {.async_op = true});
    later = std::thread([&] { gpu.hold_kernels(false); });
  }  // the destructor waits for what is in progress
  EXPECT_TRUE(work.is_success());
  EXPECT_EQ(gpu.count("abort"), 0);
  later.join();
}

TEST_F(NcclFaults, ManyThreadsOneGroup) {
  const auto group = alone();
  as_threads(4, [&](int /*rank*/) {
    for (int i = 0; i < 50; ++i) {
      OnDevice<float> x({1});
      const auto work = group->all_reduce(x.buffer(), {.async_op = i % 2 == 0});
      if (i % 5 == 0) work.wait(30s);
      if (i % 7 == 0) work.is_completed();
    }
  });
  group->wait_for_pending();
  EXPECT_EQ(group->sequence_number(), 200U);
}

}  // namespace
}  // namespace cohort::test
