// SPDX-License-Identifier: BSD-3-Clause
//
// CUDA memory through a group on host memory: what it computes, what waits for what, and how it ends.
#include "backends/staged/backend.h"

#include <atomic>
#include <numeric>
#include <thread>

#include "backends/nccl/nccl_test.h"
#include "group/factories.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;

class StagedTest : public ::testing::Test {
 protected:
  FakeGpu gpu;

  static void SetUpTestSuite() {
    static const bool once = [] {
      register_backend("staged-thread", [](const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                           const Device& device, const Options& options) {
        const auto host = find_backend("thread")(store, rank, size, timeout, DeviceType::cpu, options);
        auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout);
        const auto context =
            std::make_shared<const cuda::Context>(FakeGpu::instance().engine().driver, std::max(device.index, 0));
        group->add_backend(DeviceType::cuda, std::make_shared<staged::StagedBackend>(host, context));
        return group;
      });
      return true;
    }();
    static_cast<void>(once);
  }
  void TearDown() override { EXPECT_FALSE(gpu.asked_about_capture()); }

  static void with_ranks(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
    const auto store = std::make_shared<HashStore>();
    as_threads(size, [&](int rank) {
      body(new_group("staged-thread", timeout, "cuda:0", {}, {.store = store, .rank = rank, .size = size}));
    });
  }
  /// An item on a stream that is complete once `flag` is set and the stream is queried.
  void block(void* stream, const std::atomic<bool>& flag) {
    const auto lock = gpu.lock();
    gpu.enqueue(stream, [&flag] { return flag.load(); });
  }
  void unblock(std::atomic<bool>& flag) {
    const auto lock = gpu.lock();
    flag = true;
    gpu.pump();
  }
};

std::vector<float> from(int rank, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(rank * 100));
  return values;
}

using StagedGroup = StagedTest;

TEST_F(StagedGroup, ComputesWhatTheHostsGroupDoes) {
  for (const int size : {1, 2, 3, 5}) {
    for (const bool async_op : {false, true}) {
      with_ranks(size, [&](const ProcessGroupPtr& group) {
        const auto n = static_cast<std::size_t>(size);
        const int me = group->rank();
        const int last = size - 1;
        const auto mine = static_cast<std::size_t>(me);

        OnDevice<float> sum(std::vector<float>(1000, static_cast<float>(me + 1)));
        group->all_reduce(sum.buffer(), {.async_op = async_op}).wait();
        EXPECT_THAT(sum.values(), Each(static_cast<float>(size * (size + 1) / 2)));

        OnDevice<double> rooted({1.0 * me, -1.0 * me});
        group->reduce(rooted.buffer(), {.root = 0, .op = ReduceOp::max(), .async_op = async_op}).wait();
        EXPECT_THAT(rooted.values(), me == 0 ? ElementsAre(1.0 * last, 0.0) : ElementsAre(1.0 * me, -1.0 * me));
        OnDevice<float> added(from(me, 3));
        group->reduce(added.buffer(), {.root = last, .async_op = async_op}).wait();
        const auto ranks = static_cast<float>(size);
        const auto first = static_cast<float>(100 * last * size / 2);
        EXPECT_EQ(added.values(), me == last ? std::vector({first, first + ranks, first + 2 * ranks}) : from(me, 3));

        OnDevice<float> cast(from(me, 7));
        group->broadcast(cast.buffer(), {.root = last, .async_op = async_op}).wait();
        EXPECT_EQ(cast.values(), from(last, 7));

        OnDevice<float> part(from(me, 3));
        OnDevice<float> whole{std::vector<float>(3 * n)};
        group->all_gather(whole.buffer(), part.buffer(), {.async_op = async_op}).wait();
        std::vector<float> all;
        for (int rank = 0; rank < size; ++rank) {
          for (const float each : from(rank, 3)) all.push_back(each);
        }
        EXPECT_EQ(whole.values(), all);

        OnDevice<float> piece(std::vector<float>(2));
        OnDevice<float> wholes{std::vector<float>(2 * n, 1)};
        group->reduce_scatter(piece.buffer(), wholes.buffer(), {.async_op = async_op}).wait();
        EXPECT_THAT(piece.values(), Each(static_cast<float>(size)));

        OnDevice<float> to(from(me, n));
        OnDevice<float> back{std::vector<float>(n)};
        group->all_to_all(back.buffer(), to.buffer(), {.async_op = async_op}).wait();
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_EQ(back.values()[static_cast<std::size_t>(rank)], from(rank, n)[mine]);
        }

        std::vector<OnDevice<float>> places;
        std::vector<Buffer> list;
        for (int rank = 0; rank < size; ++rank) list.push_back(places.emplace_back(from(rank + 50, 4)).buffer());
        OnDevice<float> one(std::vector<float>(4));
        group->scatter(one.buffer(), me == 0 ? ConstBufferList(list) : ConstBufferList(), {.async_op = async_op})
            .wait();
        EXPECT_EQ(one.values(), from(me + 50, 4));
        OnDevice<float> given(from(me, 4));
        group
            ->gather(me == last ? BufferList(list) : BufferList(), given.buffer(), {.root = last, .async_op = async_op})
            .wait();
        for (int rank = 0; me == last && rank < size; ++rank) {
          EXPECT_EQ(places[static_cast<std::size_t>(rank)].values(), from(rank, 4));
        }

        group->barrier({.async_op = async_op}).wait();
        EXPECT_EQ(group->broadcast_bytes(me == 0 ? "by the host" : ""), "by the host");
        OnDevice<float> nothing(std::vector<float>{});
        group->all_reduce(nothing.buffer(), {.async_op = async_op}).wait();
      });
    }
  }
}

TEST_F(StagedGroup, BatchesAndParts) {
  with_ranks(3, [&](const ProcessGroupPtr& group) {
    const int me = group->rank();
    OnDevice<float> a({1});
    OnDevice<float> b({2, 3});
    group->all_reduce_coalesced(BufferList{a.buffer(), b.buffer()}, {.async_op = true}).wait();
    EXPECT_THAT(a.values(), ElementsAre(3));
    EXPECT_THAT(b.values(), ElementsAre(6, 9));

    OnDevice<float> right(from(me, 5));
    OnDevice<float> left(std::vector<float>(5));
    auto batch = group->batch();
    batch.recv(left.buffer(), (me + 2) % 3);
    batch.send(right.buffer(), (me + 1) % 3);
    batch.run().wait();
    EXPECT_EQ(left.values(), from((me + 2) % 3, 5));

    const auto pair = group->split_group({0, 2});
    EXPECT_EQ(pair == nullptr, me == 1);
    if (pair != nullptr) {
      OnDevice<float> x({1});
      pair->all_reduce(x.buffer());
      EXPECT_THAT(x.values(), ElementsAre(2));
    }
  });
}

TEST_F(StagedGroup, ReceiveMayBeIssuedBeforeTheSendItWaitsFor) {
  with_ranks(2, [&](const ProcessGroupPtr& group) {
    const int peer = 1 - group->rank();
    OnDevice<float> in(std::vector<float>(100));
    OnDevice<float> out(from(group->rank(), 100));
    const auto received = group->recv(in.buffer(), peer, {.tag = 3, .async_op = true});
    const auto sent = group->send(out.buffer(), peer, {.tag = 3, .async_op = true});
    received.wait();
    sent.wait();
    EXPECT_EQ(in.values(), from(peer, 100));
  });
}

TEST_F(StagedGroup, IsOrderedOnTheStream) {
  with_ranks(2, [&](const ProcessGroupPtr& group) {
    auto* const user = gpu.make_stream("user" + std::to_string(group->rank()));
    OnDevice<float> x({0});
    std::atomic<bool> may_go = false;
    block(user, may_go);
    gpu.launch(user, [&] { x.values()[0] = 21; });
    const auto work = group->all_reduce(x.buffer(), {.async_op = true, .stream = user});
    EXPECT_FALSE(work.is_completed()) << "the host does not wait";
    unblock(may_go);
    float seen = 0;
    work.wait();
    gpu.launch(user, [&] { seen = x.values()[0]; });
    work.wait(30s);
    EXPECT_EQ(seen, 42);
    EXPECT_TRUE(work.is_success());
  });
}

TEST_F(StagedGroup, StreamThatDoesNotComeEndsTheGroupForAll) {
  std::atomic<bool> may_go = false;
  with_ranks(
      2,
      [&](const ProcessGroupPtr& group) {
        OnDevice<float> x({1});
        if (group->rank() == 0) {
          auto* const user = gpu.make_stream("stuck");
          block(user, may_go);
          EXPECT_ERROR(OperationTimeoutError, group->all_reduce(x.buffer(), {.timeout = 100ms, .stream = user}),
                       "its stream did not reach it within 100 ms");
          unblock(may_go);
        } else {
          EXPECT_ERROR(AbortedError, group->all_reduce(x.buffer()), "its stream did not reach");
        }
        EXPECT_THROW(group->all_reduce(x.buffer()), Error);
      },
      30s);
}

TEST_F(StagedGroup, AbortFreesThoseWhoWait) {
  std::atomic<bool> may_go = false;
  with_ranks(1, [&](const ProcessGroupPtr& group) {
    auto* const user = gpu.make_stream("stuck");
    block(user, may_go);
    OnDevice<float> x({1});
    const auto work = group->all_reduce(x.buffer(), {.async_op = true, .stream = user});
    group->abort("enough");
    EXPECT_ERROR(AbortedError, work.wait(), "enough");
    unblock(may_go);
  });
}

TEST_F(StagedGroup, PeerThatLeftIsNamed) {
  with_ranks(2, [&](const ProcessGroupPtr& group) {
    if (group->rank() == 1) return;
    OnDevice<float> x({1});
    const auto work = group->all_reduce(x.buffer(), {.async_op = true});
    EXPECT_ERROR(PeerLostError, work.wait(), "rank 1 has left");
  });
}

TEST_F(StagedGroup, MemoryIsKeptUntilItIsThrough) {
  with_ranks(2, [&](const ProcessGroupPtr& group) {
    std::weak_ptr<std::vector<float>> memory;
    {
      const OnDevice<float> x({1});
      memory = x.weak();
      group->all_reduce(x.buffer(), {.async_op = true});
    }
    group->wait_for_pending();
    const auto limit = Deadline::after(30s);
    while (!memory.expired() && !limit.expired()) std::this_thread::yield();
    EXPECT_TRUE(memory.expired());
  });
}

TEST_F(StagedGroup, RefusesWhatItCannotDo) {
  with_ranks(1, [&](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    auto* const user = gpu.make_stream("user");
    gpu.set_capturing(user, true);
    EXPECT_ERROR(NotSupportedError, group->all_reduce(x.buffer(), {.stream = user}), "capture with nccl");
    gpu.set_capturing(user, false);
    EXPECT_ERROR(NotSupportedError, group->recv_any_source(x.buffer()), "name the peer");
    const Buffer elsewhere(x.values().data(), DType::f32, {1}, {}, "cuda:1");
    EXPECT_ERROR(ValueError, group->all_reduce(elsewhere), "memory of cuda:1 in a group of cuda:0");
    EXPECT_TRUE(group->capabilities("cuda").stream_ordered);
    EXPECT_FALSE(group->capabilities("cuda").group_memory);
    group->all_reduce(x.buffer(), {.stream = user});
    EXPECT_THAT(x.values(), ElementsAre(1)) << "and goes on";
  });
}

}  // namespace
}  // namespace cohort::test
