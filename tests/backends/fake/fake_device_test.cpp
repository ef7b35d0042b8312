// SPDX-License-Identifier: BSD-3-Clause
//
// Groups without peers, on the device memory of the test double.
#include <atomic>

#include "backends/fake/backend.h"
#include "backends/nccl/nccl_test.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;

class FakeOnDevice : public ::testing::Test {
 protected:
  FakeGpu gpu;

  static ProcessGroupPtr fake(int rank, int size, const Options& options = {},
                              std::chrono::milliseconds timeout = patient) {
    return fake::make_group_on(&FakeGpu::instance().engine().driver, std::make_shared<HashStore>(), rank, size, timeout,
                               options);
  }
  void TearDown() override { EXPECT_FALSE(gpu.asked_about_capture()); }
};

TEST_F(FakeOnDevice, EveryOperationsValue) {
  for (const bool async_op : {false, true}) {
    const auto group = fake(1, 3);
    EXPECT_TRUE(group->capabilities("cuda").stream_ordered);
    OnDevice<float> x({1, 2});
    group->all_reduce(x.buffer(), {.async_op = async_op}).wait(30s);
    group->all_reduce_coalesced({x.buffer()}, {.async_op = async_op}).wait(30s);
    group->reduce(x.buffer(), {.root = 1, .async_op = async_op}).wait(30s);
    group->broadcast(x.buffer(), {.root = 0, .async_op = async_op}).wait(30s);
    EXPECT_THAT(x.values(), ElementsAre(1, 2));
    OnDevice<float> all(std::vector<float>(6, -1));
    group->all_gather(all.buffer(), x.buffer(), {.async_op = async_op}).wait(30s);
    EXPECT_THAT(all.values(), ElementsAre(1, 2, 1, 2, 1, 2));
    OnDevice<float> other({3});
    OnDevice<float> others(std::vector<float>(3, -1));
    group->all_gather_coalesced({all.buffer(), others.buffer()}, {x.buffer(), other.buffer()}, {.async_op = async_op})
        .wait(30s);
    EXPECT_THAT(others.values(), Each(3));
    OnDevice<float> a({0, 0});
    OnDevice<float> b({0, 0});
    OnDevice<float> c({0, 0});
    group->gather({a.buffer(), b.buffer(), c.buffer()}, x.buffer(), {.root = 1, .async_op = async_op}).wait(30s);
    EXPECT_EQ(b.values(), x.values());
    OnDevice<float> whole({1, 2, 3, 4, 5, 6});
    group->reduce_scatter(a.buffer(), whole.buffer(), {.async_op = async_op}).wait(30s);
    EXPECT_THAT(a.values(), ElementsAre(3, 4));
    group->scatter(c.buffer(), {x.buffer(), a.buffer(), x.buffer()}, {.root = 1, .async_op = async_op}).wait(30s);
    EXPECT_THAT(c.values(), ElementsAre(3, 4));
    group->all_to_all(all.buffer(), whole.buffer(), {.async_op = async_op}).wait(30s);
    EXPECT_EQ(all.values(), whole.values());
    group->send(x.buffer(), 0, {.async_op = async_op}).wait(30s);
    group->recv(x.buffer(), 2, {.async_op = async_op}).wait(30s);
    group->barrier();
    EXPECT_THAT(x.values(), ElementsAre(1, 2));
  }
}

TEST_F(FakeOnDevice, UniformRanks) {
  const auto group = fake(1, 3, {{"simulate_uniform_ranks", true}});
  OnDevice<float> x({1, 2});
  group->all_reduce(x.buffer()).wait(30s);
  EXPECT_THAT(x.values(), ElementsAre(3, 6));
  group->all_reduce(x.buffer(), {.op = ReduceOp::avg()}).wait(30s);
  EXPECT_THAT(x.values(), ElementsAre(3, 6));
  OnDevice<float> whole({1, 2, 3, 4, 5, 6});
  group->reduce_scatter(x.buffer(), whole.buffer()).wait(30s);
  EXPECT_THAT(x.values(), ElementsAre(9, 12));
  const auto pair = group->partition({{2, 1}});
  pair->all_reduce(x.buffer()).wait(30s);
  EXPECT_THAT(x.values(), ElementsAre(18, 24)) << "parts serve device memory too";
}

TEST_F(FakeOnDevice, CopiesInTheOrderOfTheStream) {
  auto* const stream = gpu.make_stream("user");
  std::atomic<bool> flag{false};
  {
    const auto lock = gpu.lock();
    gpu.enqueue(stream, [&flag] { return flag.load(); });
  }
  const auto group = fake(0, 2);
  OnDevice<float> x({5});
  OnDevice<float> all({0, 0});
  group->all_gather(all.buffer(), x.buffer(), {.stream = stream});
  EXPECT_THAT(all.values(), Each(0)) << "enqueued; the host does not wait";
  EXPECT_ERROR(
      OperationTimeoutError,
      group->all_gather(all.buffer(), x.buffer(), {.async_op = true, .timeout = 20ms, .stream = stream}).wait(),
      "did not reach");
  {
    const auto lock = gpu.lock();
    flag = true;
    gpu.pump();
  }
  EXPECT_THAT(all.values(), Each(5));
}

TEST_F(FakeOnDevice, CapturesCopiesButNotArithmetic) {
  auto* const stream = gpu.make_stream("captured");
  gpu.set_capturing(stream, true);
  OnDevice<float> x({5});
  OnDevice<float> all({0, 0});
  const auto group = fake(0, 2);
  group->all_gather(all.buffer(), x.buffer(), {.async_op = true, .stream = stream}).wait();
  group->all_reduce(x.buffer(), {.stream = stream});
  EXPECT_ERROR(NotSupportedError,
               fake(0, 2, {{"simulate_uniform_ranks", true}})->all_reduce(x.buffer(), {.stream = stream}), "capture");
  gpu.set_capturing(stream, false);
}

TEST_F(FakeOnDevice, ErrorOnCollective) {
  const auto group = fake(0, 2, {{"error_on_collective", true}});
  OnDevice<float> x({5});
  EXPECT_ERROR(BackendError, group->all_reduce(x.buffer()), "error_on_collective");
  EXPECT_NO_THROW(group->send(x.buffer(), 1));
}

TEST_F(FakeOnDevice, ShrinksWithBothKindsOfMemory) {
  const auto smaller = fake(2, 3)->shrink({.excluded = {0}});
  ASSERT_NE(smaller, nullptr);
  EXPECT_EQ(smaller->rank(), 1);
  OnDevice<float> x({1, 2});
  OnDevice<float> all(std::vector<float>(4, -1));
  smaller->all_gather(all.buffer(), x.buffer());
  EXPECT_THAT(all.values(), ElementsAre(1, 2, 1, 2));
  std::vector<float> on_host{3};
  std::vector<float> gathered(2);
  smaller->all_gather(gathered, on_host);
  EXPECT_THAT(gathered, Each(3));
}

}  // namespace
}  // namespace cohort::test
