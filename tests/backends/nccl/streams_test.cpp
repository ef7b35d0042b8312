// SPDX-License-Identifier: BSD-3-Clause
//
// Which stream waits for which, which calls block, and how long memory is kept.
#include <atomic>
#include <thread>

#include "backends/nccl/nccl_test.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

class NcclStreams : public NcclTest {
 protected:
  void* user = gpu.make_stream("user");
};

TEST_F(NcclStreams, BlockingOperationGoesOntoTheUsersStream) {
  const auto group = alone();
  OnDevice<float> x({1, 2});
  gpu.clear_log();
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.stream = user});
  EXPECT_THAT(gpu.log(), ElementsAre("all_reduce user", "event_record user"));
  EXPECT_FALSE(work.is_completed()) << "the host did not wait";
  bool ran = false;
  gpu.launch(user, [&] { ran = true; });
  work.wait();
  EXPECT_FALSE(ran) << "nor does wait()";
  EXPECT_EQ(gpu.log().size(), 2U) << "nothing to order on the same stream";
  gpu.hold_kernels(false);
  EXPECT_TRUE(ran);
  EXPECT_TRUE(work.is_completed());
  EXPECT_TRUE(work.is_success());
}

TEST_F(NcclStreams, AsynchronousOneWaitsForTheUsersStreamAndIsWaitedForByIt) {
  const auto group = alone();
  OnDevice<float> x({1, 2});
  bool may_go = false;
  gpu.clear_log();
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.async_op = true, .stream = user});
  EXPECT_THAT(gpu.log(),
              ElementsAre("event_record user", "stream_wait_event own0", "all_reduce own0", "event_record own0"));
  gpu.launch(user, [&] { may_go = true; });
  EXPECT_TRUE(may_go) << "the user's stream goes on beside it";
  work.wait();
  EXPECT_EQ(gpu.log().back(), "stream_wait_event user");
  bool after = false;
  gpu.launch(user, [&] { after = true; });
  EXPECT_FALSE(after);
  gpu.hold_kernels(false);
  EXPECT_TRUE(after);
}

TEST_F(NcclStreams, AnotherStreamMayBeTheOneThatWaits) {
  const auto group = alone();
  OnDevice<float> x({1, 2});
  bool users = false;
  bool others = false;
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.async_op = true, .stream = user});
  auto* const other = gpu.make_stream("other");
  work.wait_on(other);
  EXPECT_EQ(gpu.log().back(), "stream_wait_event other");
  gpu.launch(user, [&] { users = true; });
  gpu.launch(other, [&] { others = true; });
  EXPECT_TRUE(users) << "nobody told it to wait";
  EXPECT_FALSE(others);
  gpu.hold_kernels(false);
  EXPECT_TRUE(others);
}

TEST_F(NcclStreams, OperationSeesWhatTheStreamDidBefore) {
  const auto group = alone();
  for (const bool async_op : {false, true}) {
    OnDevice<float> x({0});
    OnDevice<float> y({0});
    bool open = false;
    gpu.launch(user, [&] { x.values()[0] = 42; });
    const auto work = group->all_gather(y.buffer(), x.buffer(), {.async_op = async_op, .stream = user});
    work.wait();
    gpu.launch(user, [&] { open = y.values()[0] == 42; });
    EXPECT_TRUE(open);
  }
}

TEST_F(NcclStreams, WaitWithATimeoutBlocksTheHost) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.async_op = true});
  EXPECT_ERROR(OperationTimeoutError, work.wait(20ms), "the operation continues");
  std::thread later([&] { gpu.hold_kernels(false); });
  work.wait(30s);
  EXPECT_TRUE(work.is_completed());
  later.join();
}

TEST_F(NcclStreams, BarrierBlocksTheHost) {
  std::atomic<int> here = 0;
  with_ranks(3, [&](const ProcessGroupPtr& group) {
    ++here;
    group->barrier();
    EXPECT_EQ(here, 3);
    const auto work = group->barrier({.async_op = true});
    work.wait();
    EXPECT_TRUE(work.is_completed());
  });
}

TEST_F(NcclStreams, MemoryIsKeptUntilTheDeviceIsThrough) {
  const auto group = alone();
  std::weak_ptr<std::vector<float>> memory;
  gpu.hold_kernels(true);
  for (const bool async_op : {false, true}) {
    OnDevice<float> x({1});
    memory = x.weak();
    group->all_reduce(x.buffer(), {.async_op = async_op, .stream = user});
    // Both the Work and the user's own handle are gone.
  }
  EXPECT_FALSE(memory.expired());
  gpu.hold_kernels(false);
  const auto limit = Deadline::after(30s);
  while (!memory.expired() && !limit.expired()) std::this_thread::yield();  // until the watchdog's next check
  EXPECT_TRUE(memory.expired());
}

TEST_F(NcclStreams, BorrowedMemoryIsWaitedForWhereOnlyTheWorkKnowsOfIt) {
  const auto group = alone();
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  { group->all_reduce(x.borrowed(), {.stream = user}); }  // enqueued on the user's stream itself, so it returns
  std::atomic<bool> let_go = false;
  std::thread later([&] {
    let_go = true;
    gpu.hold_kernels(false);
  });
  { group->all_reduce(x.borrowed(), {.async_op = true, .stream = user}); }
  EXPECT_TRUE(let_go);
  later.join();
}

TEST_F(NcclStreams, FuturesRecordsAndHooksSeeTheEnd) {
  const auto group = alone();
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  group->add_pre_hook([&](const HookEvent&) { ++begun; });
  group->add_post_hook([&](const HookEvent& event) { ended += event.error == nullptr ? 1 : 100; });
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer(), {.async_op = true});
  auto future = work.then([](const std::vector<Buffer>& outputs) { return outputs.size(); });
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(ended, 0);
  EXPECT_ERROR(Error, work.result(), "not ended");
  gpu.hold_kernels(false);
  EXPECT_EQ(future.value(30s), 1U);  // after the watchdog's next check
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(work.result().size(), 1U);
  EXPECT_EQ(work.duration(), std::nullopt) << "nobody asked for it";
}

TEST_F(NcclStreams, DurationsWhereAskedFor) {
  const auto group = alone({{"timing", true}});
  OnDevice<float> x({1});
  gpu.hold_kernels(true);
  const auto work = group->all_reduce(x.buffer());
  EXPECT_EQ(work.duration(), std::nullopt);
  gpu.hold_kernels(false);
  EXPECT_EQ(work.duration(), 1500us);
}

TEST_F(NcclStreams, EventsAreUsedAgain) {
  const auto group = alone();
  OnDevice<float> x({1});
  group->all_reduce(x.buffer()).wait(30s);
  const int before = gpu.alive_events();
  for (int i = 0; i < 100; ++i) {
    group->all_reduce(x.buffer());
    if (i % 10 == 0) group->wait_for_pending();
  }
  EXPECT_LE(gpu.alive_events(), before + 10);
}

TEST_F(NcclStreams, CapturedOperationsAreNeverAskedAbout) {
  const auto group = alone({}, 50ms);
  OnDevice<float> x({1});
  gpu.hold_kernels(true);  // a graph runs nothing while it is recorded
  gpu.set_capturing(user, true);
  const auto work = group->all_reduce(x.buffer(), {.stream = user});
  const auto beside = group->all_reduce(x.buffer(), {.async_op = true, .stream = user});
  beside.wait();
  EXPECT_EQ(gpu.log().back(), "stream_wait_event user") << "the group's stream is joined again";
  EXPECT_TRUE(work.is_completed());
  work.wait(1s);
  gpu.set_capturing(user, false);
  gpu.hold_kernels(false);
  // Ended by the watchdog, which has therefore checked once, well past the deadline above.
  group->all_reduce(x.buffer(), {.timeout = patient}).future().wait(30s);
  EXPECT_FALSE(gpu.asked_about_capture());
  EXPECT_EQ(gpu.count("abort"), 0);
}

}  // namespace
}  // namespace cohort::test
