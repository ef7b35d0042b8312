// SPDX-License-Identifier: BSD-3-Clause
//
// Groups without peers.
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using Ints = std::vector<int>;

ProcessGroupPtr fake(int rank, int size, const Options& options = {}) {
  return new_group("fake", 5s, "cpu", options, {.store = std::make_shared<HashStore>(), .rank = rank, .size = size});
}

TEST(Fake, LeavesWhatIsReducedOrBroadcastAlone) {
  const auto group = fake(1, 3);
  Ints x{1, 2};
  const Ints before = x;
  for (const auto& op : {ReduceOp::sum(), ReduceOp::product(), ReduceOp::max(), ReduceOp::bxor()}) {
    group->all_reduce(x, {.op = op});
    EXPECT_EQ(x, before);
  }
  std::vector<float> f{1.5F};
  group->all_reduce(f, {.op = ReduceOp::avg()});
  EXPECT_EQ(f[0], 1.5F);
  Ints y{5};
  group->all_reduce_coalesced({x, y});
  for (int root = 0; root < 3; ++root) {
    group->reduce(x, {.root = root});
    group->broadcast(x, {.root = root});
  }
  EXPECT_EQ(x, before);
  EXPECT_EQ(y[0], 5);
}

TEST(Fake, GathersItsOwnInputFromEveryone) {
  const auto group = fake(1, 3);
  const Ints mine{4, 5};
  Ints all(6, -1);
  group->all_gather(all, mine);
  EXPECT_THAT(all, ElementsAre(4, 5, 4, 5, 4, 5));
  Ints a(2);
  Ints b(2);
  Ints c(2);
  group->all_gather({a, b, c}, mine);
  EXPECT_EQ(a, mine);
  EXPECT_EQ(b, mine);
  EXPECT_EQ(c, mine);
  const Ints other{7};
  Ints others(3, -1);
  all.assign(6, -1);
  group->all_gather_coalesced({all, others}, {mine, other});
  EXPECT_THAT(all, ElementsAre(4, 5, 4, 5, 4, 5));
  EXPECT_THAT(others, Each(7));
  Ints d(1);
  Ints e(1);
  Ints f(1);
  a = b = c = {0, 0};
  group->all_gather_coalesced(std::vector<BufferList>{{a, d}, {b, e}, {c, f}}, {mine, other});
  EXPECT_EQ(b, mine);
  EXPECT_EQ(d[0] + e[0] + f[0], 21);

  a = b = c = {0, 0};
  group->gather({a, b, c}, mine, {.root = 1});
  EXPECT_EQ(a, mine);
  EXPECT_EQ(b, mine);
  EXPECT_EQ(c, mine);
  EXPECT_NO_THROW(group->gather({}, mine, {.root = 0}));
}

TEST(Fake, ScattersWhatItHas) {
  const auto group = fake(1, 3);
  const Ints a{1, 1};
  const Ints b{2, 2};
  const Ints c{3, 3};
  Ints out{9, 9};
  group->scatter(out, {}, {.root = 0});
  EXPECT_THAT(out, Each(9)) << "away from the root there is nothing to scatter";
  group->scatter(out, {a, b, c}, {.root = 1});
  EXPECT_EQ(out, b);
  out = {9, 9};
  group->reduce_scatter(out, {a, b, c});
  EXPECT_EQ(out, b);
  const Ints whole{1, 2, 3, 4, 5, 6};
  group->reduce_scatter(out, whole);
  EXPECT_THAT(out, ElementsAre(3, 4));
  Ints small{9};
  const Ints three{7, 8, 9};
  group->reduce_scatter_coalesced({out, small}, {whole, three});
  EXPECT_THAT(out, ElementsAre(3, 4));
  EXPECT_THAT(small, ElementsAre(8));
  Ints turned(6, -1);
  group->all_to_all(turned, whole);
  EXPECT_EQ(turned, whole) << "what goes to a rank comes back from it";
  Ints d(2);
  Ints e(2);
  Ints f(2);
  group->all_to_all({d, e, f}, {a, b, c});
  EXPECT_EQ(d, a);
  EXPECT_EQ(e, b);
  EXPECT_EQ(f, c);
}

TEST(Fake, PointToPointAndBarriersDoNothing) {
  const auto group = fake(1, 3);
  Ints x{1};
  group->send(x, 0);
  group->recv(x, 2);
  EXPECT_EQ(group->recv(x, 2, {.async_op = true}).source_rank(), 2);
  group->recv_any_source(x);
  group->barrier();
  EXPECT_EQ(x[0], 1);
  auto batch = group->batch();
  batch.send(x, 0);
  batch.recv(x, 2);
  batch.run().wait();
}

TEST(Fake, WorkIsCompleted) {
  const auto group = fake(0, 2);
  Ints x{1};
  const auto work = group->all_reduce(x, {.async_op = true});
  work.wait();
  EXPECT_TRUE(work.is_success());
  EXPECT_EQ(work.future().value().size(), 1U);
  EXPECT_TRUE(group->all_reduce(x).is_completed());
  EXPECT_EQ(group->sequence_number(), 2U);
}

TEST(Fake, ArgumentsAreCheckedAsEverywhere) {
  const auto group = fake(1, 3);
  Ints x(2);
  Ints y(5);
  EXPECT_THROW(group->all_gather(y, x), ValueError);
  EXPECT_THROW(group->gather({x, x, x}, x, {.root = 0}), ValueError) << "not the root";
  EXPECT_THROW(group->scatter(x, {x}, {.root = 1}), ValueError) << "one for each rank";
  EXPECT_THROW(group->broadcast(x, {.root = 3}), ValueError);
  EXPECT_THROW(group->all_reduce(x, {.op = ReduceOp::avg()}), TypeError);
  EXPECT_THROW(group->send(x, 7), ValueError);
}

TEST(Fake, ErrorOnCollective) {
  const auto group = fake(1, 3, {{"error_on_collective", true}});
  Ints x(2);
  Ints y(6);
  const auto refuses = [](const std::function<void()>& call) {
    EXPECT_THAT(message_of<BackendError>(call), ::testing::HasSubstr("error_on_collective"));
  };
  refuses([&] { group->all_reduce(x); });
  refuses([&] { group->all_reduce_coalesced({x, y}); });
  refuses([&] { group->reduce(x); });
  refuses([&] { group->broadcast(x); });
  refuses([&] { group->all_gather(y, x); });
  refuses([&] { group->gather({}, x); });
  refuses([&] { group->scatter(x, {}); });
  refuses([&] { group->reduce_scatter(x, y); });
  refuses([&] { group->all_to_all(y, y); });
  refuses([&] { group->barrier(); });
  refuses([&] { group->broadcast(x, {.async_op = true}).wait(); });
  EXPECT_NO_THROW(group->send(x, 0));
  EXPECT_NO_THROW(group->recv(x, 0));
}

// --- simulate_uniform_ranks: every rank holds what this one holds

TEST(FakeUniform, EveryReduction) {
  const auto group = fake(2, 5, {{"simulate_uniform_ranks", true}});
  const auto reduce_ints = [&](const ReduceOp& op) {
    Ints x{3, -2};
    group->all_reduce(x, {.op = op});
    return x;
  };
  EXPECT_THAT(reduce_ints(ReduceOp::sum()), ElementsAre(15, -10));
  EXPECT_THAT(reduce_ints(ReduceOp::product()), ElementsAre(243, -32));
  EXPECT_THAT(reduce_ints(ReduceOp::min()), ElementsAre(3, -2));
  EXPECT_THAT(reduce_ints(ReduceOp::max()), ElementsAre(3, -2));
  EXPECT_THAT(reduce_ints(ReduceOp::band()), ElementsAre(3, -2));
  EXPECT_THAT(reduce_ints(ReduceOp::bor()), ElementsAre(3, -2));
  EXPECT_THAT(reduce_ints(ReduceOp::bxor()), ElementsAre(3, -2)) << "of an odd number of ranks";
  Ints even{3};
  fake(0, 4, {{"simulate_uniform_ranks", true}})->all_reduce(even, {.op = ReduceOp::bxor()});
  EXPECT_EQ(even[0], 0);

  std::vector<float> x{1.5F};
  group->all_reduce(x, {.op = ReduceOp::avg()});
  EXPECT_EQ(x[0], 1.5F);
  group->all_reduce(x, {.op = ReduceOp::premul_sum(0.5)});
  EXPECT_EQ(x[0], 3.75F);
}

TEST(FakeUniform, TheOtherOperationsFollow) {
  const auto group = fake(1, 3, {{"simulate_uniform_ranks", true}});
  Ints x{2, 3};
  group->reduce(x, {.root = 0});
  EXPECT_THAT(x, ElementsAre(2, 3)) << "not the root";
  group->reduce(x, {.root = 1});
  EXPECT_THAT(x, ElementsAre(6, 9));
  group->broadcast(x, {.root = 0});
  EXPECT_THAT(x, ElementsAre(6, 9));
  const Ints whole{1, 2, 3, 4, 5, 6};
  group->reduce_scatter(x, whole);
  EXPECT_THAT(x, ElementsAre(9, 12));
  Ints turned(6);
  group->all_to_all(turned, whole);
  EXPECT_THAT(turned, ElementsAre(3, 4, 3, 4, 3, 4)) << "everybody sends this rank the same";
  Ints all(6);
  group->all_gather(all, Ints{7, 8});
  EXPECT_THAT(all, ElementsAre(7, 8, 7, 8, 7, 8));
  Ints a{1};
  Ints b{10};
  group->all_reduce_coalesced({a, b});
  EXPECT_EQ(a[0], 3);
  EXPECT_EQ(b[0], 30);
}

TEST(FakeUniform, SplitsCountTheirOwnRanks) {
  const auto group = fake(3, 8, {{"simulate_uniform_ranks", true}});
  const auto child = group->split_group({1, 3});
  Ints x{1};
  child->all_reduce(x);
  EXPECT_EQ(x[0], 2);
}

// --- groups of any size

TEST(Fake, SplitsIntoFakeGroups) {
  const auto group = fake(6, 8);
  const auto child = group->split_group({6, 0, 7});
  ASSERT_NE(child, nullptr);
  EXPECT_EQ(child->name(), "fake");
  EXPECT_EQ(child->rank(), 1);
  EXPECT_EQ(child->size(), 3);
  EXPECT_THAT(child->global_ranks(), ElementsAre(0, 6, 7));
  EXPECT_EQ(group->split_group({0, 1}), nullptr);
  const auto refusing = fake(0, 2, {{"error_on_collective", true}})->split_group({0});
  EXPECT_THROW(refusing->barrier(), BackendError) << "options are inherited";
}

TEST(Fake, AnyRankOfTenThousand) {
  for (const int rank : {0, 1, 5000, 9999}) {
    const auto group = fake(rank, 10'000, {{"simulate_uniform_ranks", true}});
    EXPECT_EQ(group->rank(), rank);
    EXPECT_EQ(group->size(), 10'000);
    std::vector<std::int64_t> x{2, 3};
    group->all_reduce(x);
    EXPECT_THAT(x, ElementsAre(20'000, 30'000));
    std::vector<std::int8_t> all(10'000);
    group->all_gather(all, std::vector<std::int8_t>{7});
    EXPECT_THAT(all, Each(7));
    Ints out{0};
    std::vector<int> in(10'000);
    in[static_cast<std::size_t>(rank)] = 4;
    group->reduce_scatter(out, in);
    EXPECT_EQ(out[0], 40'000);
    const auto child = group->split_group({rank, (rank + 1) % 10'000});
    EXPECT_EQ(child->size(), 2);
    group->barrier();
  }
  EXPECT_THROW(fake(10'000, 10'000), ValueError);
}

TEST(Fake, ServesDeviceMemoryToo) {
  const auto group = new_group("fake", 5s, "cuda:2", {{"simulate_uniform_ranks", true}},
                               {.store = std::make_shared<HashStore>(), .rank = 0, .size = 2});
  EXPECT_THAT(group->device_types(), ElementsAre(DeviceType::cpu, DeviceType::cuda));
  EXPECT_EQ(group->bound_device(), Device("cuda:2"));
  group->barrier();
}

TEST(Fake, ShrinksAndShutsDown) {
  const auto group = fake(3, 4);
  const auto smaller = group->shrink({.excluded = {1}});
  ASSERT_NE(smaller, nullptr);
  EXPECT_EQ(smaller->rank(), 2);
  EXPECT_EQ(smaller->size(), 3);
  EXPECT_THAT(smaller->global_ranks(), ElementsAre(0, 2, 3));
  EXPECT_EQ(smaller->shrink({.excluded = {2}}), nullptr);
  const auto other = fake(0, 2);
  other->shutdown();
  EXPECT_THROW(other->barrier(), Error);
}

}  // namespace
}  // namespace cohort::test
