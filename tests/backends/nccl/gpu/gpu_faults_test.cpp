// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Streams, graphs, deadlines and the end of groups on a real device.
#include <cohort/error.h>
#include <unistd.h>

#include <thread>

#include "backends/nccl/gpu/gpu_world.h"
#include "backends/nccl/gpu/numbers.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

std::vector<std::uint8_t> ones(std::size_t count) {
  return encode(DType::f32, std::vector<double>(count, 1));
}
std::vector<std::uint8_t> all_of(double value, std::size_t count) {
  return encode(DType::f32, std::vector<double>(count, value));
}

using Gpu = OnTheGpu;

TEST_F(Gpu, MissedDeadlineAbortsAndANewGroupWorks) {
  on_one_gpu(2, [](int rank, const StorePtr& store) {
    auto group = join_gpu(store, rank, 2);
    const DeviceMemory x(ones(10));
    group->all_reduce(x.buffer(DType::f32)).wait(30s);
    if (rank == 0) {
      const auto took = time_of([&] {
        const auto work = group->all_reduce(x.buffer(DType::f32), {.async_op = true, .timeout = 2s});
        EXPECT_ERROR(OperationTimeoutError, work.wait(60s), "all_reduce");
      });
      EXPECT_LT(took, 10s);
      EXPECT_THROW(group->all_reduce(x.buffer(DType::f32)), OperationTimeoutError);
      store->set("gave-up", "1");
    } else {
      store->wait({"gave-up"}, 60s);
      group->abort("the other one gave up");
    }
    group.reset();
    group = join_gpu(store, rank, 2);
    const DeviceMemory y(ones(10));
    group->all_reduce(y.buffer(DType::f32)).wait(30s);
    EXPECT_EQ(y.bytes(), all_of(2, 10));
  });
}

TEST_F(Gpu, DeadPeerIsAnErrorInTime) {
  const ProcessStore store;  // hosted by rank 0, which survives
  as_processes(2, [&](int rank) {
    ::setenv("NCCL_HOSTID", ("cohort-test-" + std::to_string(rank)).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("NCCL_IB_DISABLE", "1", 1);
    const auto group = join_gpu(store.open(rank), rank, 2);
    const DeviceMemory x(ones(10));
    group->all_reduce(x.buffer(DType::f32)).wait(30s);
    if (rank == 1) ::_exit(0);
    // Long before the deadline, so it is the death that is noticed.
    const auto took = time_of([&] {
      EXPECT_ERROR(PeerLostError, group->all_reduce(x.buffer(DType::f32), {.timeout = 120s}).wait(120s), "rank 1");
    });
    EXPECT_LT(took, 30s);
    return 0;
  });
}

TEST_F(Gpu, MemoryIsKeptUntilTheDeviceIsThrough) {
  with_gpu_group({.size = 2}, [](const ProcessGroupPtr& group) {
    std::weak_ptr<cuda::Memory> memory;
    {
      const DeviceMemory x(ones(1 << 20));
      memory = x.weak();
      group->all_reduce(x.buffer(DType::f32), {.async_op = true});
    }
    group->wait_for_pending();
    const auto limit = Deadline::after(30s);
    while (!memory.expired() && !limit.expired()) std::this_thread::yield();
    EXPECT_TRUE(memory.expired());
  });
}

TEST_F(Gpu, CompletionIsSeenFromAThreadThatNeverTouchedCuda) {
  with_gpu_group({.size = 1}, [](const ProcessGroupPtr& group) {
    const DeviceMemory x(ones(1000));
    const auto work = group->all_reduce(x.buffer(DType::f32), {.async_op = true});
    std::thread([&] {
      work.wait(30s);
      EXPECT_TRUE(work.is_success());
    }).join();
  });
}

TEST_F(Gpu, DurationsAreMeasured) {
  on_one_gpu(1, [](int rank, const StorePtr& store) {
    const auto group = join_gpu(store, rank, 1, patient, {{"timing", true}});
    const DeviceMemory in(ones(1 << 20));
    const DeviceMemory out(ones(1 << 20));
    const auto work = group->all_gather(out.buffer(DType::f32), in.buffer(DType::f32));
    work.wait(30s);
    ASSERT_TRUE(work.duration().has_value());
    EXPECT_GT(*work.duration(), 0ns);
    EXPECT_LT(*work.duration(), 1s);
  });
}

/// A graph of one all_reduce, replayed: each replay multiplies the value by the number of ranks.
void capture_and_replay(const ProcessGroupPtr& group, bool async_op) {
  const auto& more = MoreOfTheDriver::get();
  const cuda::Stream stream(gpu_context(), false);
  const cuda::Current current(*gpu_context());
  const DeviceMemory x(ones(1000));
  group->all_reduce(x.buffer(DType::f32), {.stream = stream.get()}).wait(30s);  // connects before the capture
  constexpr int relaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: NCCL may allocate during the capture
  must(more.begin_capture(stream.get(), relaxed), "cuStreamBeginCapture");
  group->all_reduce(x.buffer(DType::f32), {.async_op = async_op, .timeout = 300ms, .stream = stream.get()}).wait();
  void* graph = nullptr;
  must(more.end_capture(stream.get(), &graph), "cuStreamEndCapture");
  void* executable = nullptr;
  must(more.instantiate(&executable, graph, 0), "cuGraphInstantiate");
  std::this_thread::sleep_for(500ms);  // past its deadline: an operation that has not run is not watched
  for (int i = 0; i < 3; ++i) must(more.launch(executable, stream.get()), "cuGraphLaunch");
  must(more.stream_synchronize(stream.get()), "cuStreamSynchronize");
  double expected = 1;
  for (int i = 0; i < 4; ++i) expected *= group->size();
  EXPECT_EQ(x.bytes(), all_of(expected, 1000));
  group->all_reduce(x.buffer(DType::f32), {.stream = stream.get()}).wait(30s);
}

TEST_F(Gpu, GraphOfAnAllReduceIsReplayed) {
  for (const int size : {1, 2}) {
    with_gpu_group({.size = size}, [](const ProcessGroupPtr& group) {
      capture_and_replay(group, false);
      capture_and_replay(group, true);
    });
  }
}

TEST_F(Gpu, MemoryOfTheGroupAndShrinkWhereThereAre) {
  on_one_gpu(2, [](int rank, const StorePtr& store) {
    const auto group = join_gpu(store, rank, 2);
    const auto capabilities = group->capabilities("cuda");
    if (capabilities.group_memory) {
      const auto memory = group->allocate(4000);
      const Buffer shared(memory.data(), DType::f32, {1000}, {}, "cuda:0", memory.owner());
      const auto copy = [](cuda::Address to, cuda::Address from) {
        const cuda::Current current(*gpu_context());
        must(cuda::system_driver().driver.copy(to, from, 4000), "cuMemcpy");
      };
      const auto mine = all_of(rank + 1, 1000);
      copy(cuda::address_of(memory.data()), cuda::address_of(mine.data()));
      group->all_reduce(shared).wait(30s);
      std::vector<std::uint8_t> sum(4000);
      copy(cuda::address_of(sum.data()), cuda::address_of(memory.data()));
      EXPECT_EQ(sum, all_of(3, 1000));
    }
    group->barrier();
    if (!capabilities.shrinking) return;
    const auto rest = group->shrink({.excluded = {1}});
    EXPECT_EQ(rest != nullptr, rank == 0);
    if (rest != nullptr) rest->barrier();
  });
}

}  // namespace
}  // namespace cohort::test
