// SPDX-License-Identifier: BSD-3-Clause
//
// Every operation as it is passed to NCCL: the results, and the calls that were made.
#include <complex>

#include "backends/nccl/nccl_test.h"
#include "support/debug_level_scope.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

class NcclCollectives : public NcclTest {};

float at(int rank) {
  return static_cast<float>(rank);
}

TEST_F(NcclCollectives, ReduceAndMove) {
  with_ranks(3, [](const ProcessGroupPtr& group) {
    const int me = group->rank();
    OnDevice<float> x({at(me), 1});
    group->all_reduce(x.buffer()).wait(30s);
    EXPECT_EQ(x.values(), (Floats{3, 3}));

    OnDevice<float> mean({at(me)});
    group->all_reduce(mean.buffer(), {.op = ReduceOp::avg()}).wait(30s);
    EXPECT_EQ(mean.values(), (Floats{1}));

    OnDevice<std::complex<float>> complex(std::vector<std::complex<float>>{{at(me), 1}});
    group->all_reduce(complex.buffer()).wait(30s);
    EXPECT_EQ(complex.values()[0], std::complex<float>(3, 3));

    OnDevice<float> r({at(me)});
    group->reduce(r.buffer(), {.root = 1, .op = ReduceOp::max()}).wait(30s);
    EXPECT_EQ(r.values()[0], me == 1 ? 2.0F : at(me)) << "the others' are left as they are";

    OnDevice<float> b({at(me), at(me)});
    group->broadcast(b.buffer(), {.root = 2}).wait(30s);
    EXPECT_EQ(b.values(), (Floats{2, 2}));
  });
}

TEST_F(NcclCollectives, GatherAndScatter) {
  with_ranks(3, [](const ProcessGroupPtr& group) {
    const int me = group->rank();
    OnDevice<float> mine({at(me)});
    OnDevice<float> all(Floats(3));
    group->all_gather(all.buffer(), mine.buffer()).wait(30s);
    EXPECT_EQ(all.values(), (Floats{0, 1, 2}));

    // Sizes that differ: rank r has r + 1 elements.
    OnDevice<float> own(Floats(static_cast<std::size_t>(me) + 1, at(me)));
    OnDevice<float> a(Floats(1));
    OnDevice<float> b(Floats(2));
    OnDevice<float> c(Floats(3));
    group->all_gather(BufferList{a.buffer(), b.buffer(), c.buffer()}, own.buffer()).wait(30s);
    EXPECT_EQ(a.values(), (Floats{0}));
    EXPECT_EQ(b.values(), (Floats{1, 1}));
    EXPECT_EQ(c.values(), (Floats{2, 2, 2}));

    OnDevice<float> from_zero({-1});
    OnDevice<float> from_one({-1, -1});
    OnDevice<float> from_two({-1, -1, -1});
    const auto uneven = me == 1 ? BufferList{from_zero.buffer(), from_one.buffer(), from_two.buffer()} : BufferList();
    group->gather(uneven, own.buffer(), {.root = 1, .uneven = true}).wait(30s);
    if (me == 1) {
      EXPECT_EQ(from_zero.values(), (Floats{0}));
      EXPECT_EQ(from_one.values(), (Floats{1, 1}));
      EXPECT_EQ(from_two.values(), (Floats{2, 2, 2}));
    }

    OnDevice<float> part({-1});
    OnDevice<float> p0({10});
    OnDevice<float> p1({11});
    OnDevice<float> p2({12});
    const auto pieces = me == 1 ? ConstBufferList{p0.buffer(), p1.buffer(), p2.buffer()} : ConstBufferList();
    group->scatter(part.buffer(), pieces, {.root = 1}).wait(30s);
    EXPECT_EQ(part.values()[0], 10 + at(me));

    OnDevice<float> g0({0});
    OnDevice<float> g1({0});
    OnDevice<float> g2({0});
    const auto places = me == 2 ? BufferList{g0.buffer(), g1.buffer(), g2.buffer()} : BufferList();
    group->gather(places, part.buffer(), {.root = 2}).wait(30s);
    if (me == 2) {
      EXPECT_EQ((Floats{g0.values()[0], g1.values()[0], g2.values()[0]}), (Floats{10, 11, 12}));
    }
  });
}

TEST_F(NcclCollectives, ReduceScatterAndAllToAll) {
  with_ranks(2, [](const ProcessGroupPtr& group) {
    const int me = group->rank();
    OnDevice<float> in({1, 2, 3, 4});
    OnDevice<float> out(Floats(2));
    group->reduce_scatter(out.buffer(), in.buffer()).wait(30s);
    EXPECT_EQ(out.values(), me == 0 ? (Floats{2, 4}) : (Floats{6, 8}));

    // Pieces of different sizes.
    OnDevice<float> first({1});
    OnDevice<float> second({2, 3});
    OnDevice<float> mine(Floats(me == 0 ? 1 : 2));
    group->reduce_scatter(mine.buffer(), ConstBufferList{first.buffer(), second.buffer()}).wait(30s);
    EXPECT_EQ(mine.values(), me == 0 ? (Floats{2}) : (Floats{4, 6}));

    OnDevice<float> from({at(me * 10), at(me * 10 + 1), at(me * 10 + 2)});
    OnDevice<float> to(Floats(me == 0 ? 2 : 4));
    const std::vector<std::int64_t> in_splits{1, 2};
    group
        ->all_to_all(to.buffer(), from.buffer(),
                     {.output_splits = me == 0 ? std::vector<std::int64_t>{1, 1} : std::vector<std::int64_t>{2, 2},
                      .input_splits = in_splits})
        .wait(30s);
    EXPECT_EQ(to.values(), me == 0 ? (Floats{0, 10}) : (Floats{1, 2, 11, 12}));
  });
}

TEST_F(NcclCollectives, CoalescedIsOneGroupCall) {
  const auto group = alone();
  OnDevice<float> a({1});
  OnDevice<float> b({2, 3});
  gpu.clear_log();
  const auto work = group->all_reduce_coalesced(BufferList{a.buffer(), b.buffer()});
  EXPECT_THAT(gpu.log(), ::testing::ElementsAre("group_start", "all_reduce null", "all_reduce null", "group_end",
                                                "event_record null"));
  EXPECT_EQ(group->sequence_number(), 1U);
  work.wait(30s);
}

TEST_F(NcclCollectives, BatchedSendsAndReceivesAreOneGroupCall) {
  with_ranks(3, [](const ProcessGroupPtr& group) {
    const int next = (group->rank() + 1) % 3;
    const int previous = (group->rank() + 2) % 3;
    OnDevice<float> mine({at(group->rank())});
    OnDevice<float> left({-1});
    auto batch = group->batch();
    batch.recv(left.buffer(), previous);
    batch.send(mine.buffer(), next);
    batch.run().wait(30s);
    EXPECT_EQ(left.values()[0], at(previous));
    EXPECT_EQ(group->sequence_number(), 0U) << "point-to-point is counted apart";
  });
  EXPECT_EQ(gpu.count("group_start"), 3);
}

TEST_F(NcclCollectives, SendAndReceive) {
  with_ranks(2, [](const ProcessGroupPtr& group) {
    OnDevice<float> x({at(group->rank() + 5)});
    if (group->rank() == 0) {
      group->send(x.buffer(), 1).wait(30s);
    } else {
      const auto work = group->recv(x.buffer(), 0);
      work.wait(30s);
      EXPECT_EQ(x.values()[0], 5);
      EXPECT_EQ(work.source_rank(), 0);
    }
    EXPECT_ERROR(NotSupportedError, group->recv_any_source(x.buffer()), "any source");
    EXPECT_ERROR(NotSupportedError, group->send(x.buffer(), 0, {.tag = 1}), "tags");
  });
}

TEST_F(NcclCollectives, WhatTheLibraryItselfExchangesGoesThroughTheDevice) {
  with_ranks(2, [](const ProcessGroupPtr& group) {
    const auto all = group->all_gather_bytes("rank " + std::to_string(group->rank()));
    EXPECT_EQ(all, (std::vector<std::string>{"rank 0", "rank 1"}));
    EXPECT_EQ(group->broadcast_bytes(group->rank() == 1 ? "from one" : "", {.root = 1}), "from one");
    const auto at_one = group->gather_bytes(std::string(group->rank() == 0 ? "first" : "the second"), {.root = 1});
    EXPECT_EQ(at_one,
              group->rank() == 1 ? (std::vector<std::string>{"first", "the second"}) : std::vector<std::string>());
    group->all_ok([] {});
  });
}

TEST_F(NcclCollectives, SplitLeavesSomeOutside) {
  with_ranks(3, [](const ProcessGroupPtr& group) {
    const auto pair = group->split_group({0, 1});
    group->barrier();
    if (group->rank() == 2) {
      EXPECT_EQ(pair, nullptr);
    } else {
      EXPECT_EQ(pair->size(), 2);
      OnDevice<float> x({1});
      pair->all_reduce(x.buffer()).wait(30s);
      EXPECT_EQ(x.values()[0], 2);
    }
  });
  EXPECT_EQ(gpu.count("split 0"), 2);
  EXPECT_EQ(gpu.count("split -1"), 1);
}

TEST_F(NcclCollectives, PartsAreColours) {
  with_ranks(4, [](const ProcessGroupPtr& group) {
    const auto part = group->partition({{3, 0}, {1, 2}});
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), group->rank() == 3 || group->rank() == 1 ? 0 : 1) << "in the given order";
    group->barrier();
    OnDevice<float> x({static_cast<float>(group->rank())});
    part->broadcast(x.buffer(), {.root = 0}).wait(30s);
    EXPECT_EQ(x.values()[0], group->rank() == 0 || group->rank() == 3 ? 3 : 1);
  });
  EXPECT_EQ(gpu.count("split 0"), 2);
  EXPECT_EQ(gpu.count("split 1"), 2) << "one call on each rank, whatever the number of parts";
}

TEST_F(NcclCollectives, SplitByOption) {
  with_ranks(2, [](const ProcessGroupPtr& group) {
    const auto own = make(std::make_shared<HashStore>(), 0, 1,
                          {{"split_from", OptionValue::Handle(group)}, {"split_color", group->rank()}});
    OnDevice<float> x({4});
    own->all_reduce(x.buffer()).wait(30s);
    EXPECT_EQ(x.values()[0], 4);
    group->barrier();
  });
  EXPECT_EQ(gpu.count("split 0") + gpu.count("split 1"), 2);
}

TEST_F(NcclCollectives, ShrinkLeavesTheDeadBehind) {
  with_ranks(3, [](const ProcessGroupPtr& group) {
    group->barrier();
    if (group->rank() == 1) return;
    OnDevice<float> stuck({1});
    const auto work = group->all_reduce(stuck.buffer(), {.async_op = true});
    const auto rest = group->shrink({.excluded = {1}});
    EXPECT_THROW(work.wait(30s), AbortedError);
    ASSERT_NE(rest, nullptr);
    EXPECT_EQ(rest->size(), 2);
    EXPECT_EQ(rest->global_ranks(), (std::vector<int>{0, 2}));
    OnDevice<float> x({1});
    rest->all_reduce(x.buffer()).wait(30s);
    EXPECT_EQ(x.values()[0], 2);
  });
  EXPECT_EQ(gpu.count("shrink 1 flags 1"), 2);
  gpu.engine().calls.comm_shrink = nullptr;
  EXPECT_FALSE(alone()->default_backend()->capabilities().shrinking);
  EXPECT_ERROR(NotSupportedError, alone()->shrink(), "2.27");
}

TEST_F(NcclCollectives, MemoryOfTheGroupIsNccls) {
  GroupMemory memory = alone()->allocate(64);
  EXPECT_EQ(gpu.count("mem_free"), 0) << "it outlives the group";
  EXPECT_EQ(memory.as<float>()[15], 0.0F);
  memory = {};
  EXPECT_EQ(gpu.count("mem_free"), 1);
  gpu.engine().calls.mem_alloc = nullptr;
  EXPECT_ERROR(NotSupportedError, alone()->allocate(64), "2.19");
}

TEST_F(NcclCollectives, DetailedDebuggingComparesWhatRanksCall) {
  const DebugLevelScope debug(DebugLevel::detail);
  with_ranks(2, [](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    group->all_reduce(x.buffer()).wait(30s);
    EXPECT_EQ(x.values()[0], 2);
    const auto differ = [&] { group->rank() == 0 ? group->all_reduce(x.buffer()) : group->broadcast(x.buffer()); };
    EXPECT_ERROR(MismatchError, differ(), "ranks disagree on operation");
  });
}

}  // namespace
}  // namespace cohort::test
