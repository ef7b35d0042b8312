// SPDX-License-Identifier: BSD-3-Clause
//
// Batches: several operations that run as one.
#include <numeric>

#include "group/arrangements.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class Batches : public OnEveryArrangement {};

TEST_P(Batches, CollectivesAreOneWorkWithOneSequenceNumber) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    for (const bool is_async : {false, true}) {
      std::vector<float> sum(20'000, 1);
      std::vector<std::int32_t> most(3, pg->rank());
      std::vector<double> root(10, pg->rank());
      std::vector<std::int32_t> all(2 * index(n), -1);
      const std::vector<std::int32_t> mine(2, pg->rank());
      auto batch = pg->batch();
      batch.all_reduce(sum);
      batch.all_reduce(most, {.op = ReduceOp::max()});
      batch.broadcast(root, {.root = n - 1});
      batch.all_gather(all, mine);
      EXPECT_EQ(batch.size(), 4U);
      EXPECT_EQ(sum[0], 1) << "nothing happens before run()";

      const auto before = pg->sequence_number();
      const auto work = batch.run({.async_op = is_async});
      EXPECT_EQ(batch.size(), 0U);
      EXPECT_EQ(work.op(), OpType::coalesced);
      EXPECT_EQ(work.sequence(), before + 1);
      work.wait();
      EXPECT_EQ(pg->sequence_number(), before + 1);
      EXPECT_EQ(sum, std::vector<float>(sum.size(), static_cast<float>(n)));
      EXPECT_EQ(most, std::vector<std::int32_t>(3, n - 1));
      EXPECT_EQ(root, std::vector<double>(10, n - 1));
      for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int32_t>(i / 2));
      EXPECT_EQ(work.result().size(), 4U);
    }
  });
}

TEST_P(Batches, ListsAreReducedToOneResultInTheirTurn) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    for (const bool is_async : {false, true}) {
      std::vector<std::int32_t> a(3, pg->rank());
      std::vector<std::int32_t> b(3, 10);
      auto batch = pg->batch();
      batch.broadcast(a, {.root = n - 1});  // the list has what this gives
      batch.all_reduce(BufferList{a, b});
      batch.all_reduce(b, {.op = ReduceOp::max()});
      batch.run({.async_op = is_async}).wait();
      EXPECT_EQ(a, std::vector<std::int32_t>(3, n * (n - 1 + 10)));
      EXPECT_EQ(b, a);
    }
  });
}

TEST_P(Batches, ABarrierIsOfTheDeviceOfTheOthers) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> x(10, 1);
    auto batch = pg->batch();
    batch.barrier();
    batch.all_reduce(x);
    batch.barrier();
    batch.barrier({.device = Device("cpu")});
    batch.run();
    EXPECT_EQ(x, std::vector<float>(10, static_cast<float>(pg->size())));
  });
}

TEST_P(Batches, SendsAndReceivesInAnyOrder) {
  run([](const ProcessGroupPtr& pg) {
    // Receives come first, from all ranks including this one. If they ran one by one, none would ever end.
    for (const std::size_t count : {1UL, 3000UL, 200'000UL}) {
      for (const bool is_async : {false, true}) {
        const auto n = index(pg->size());
        std::vector<std::vector<std::int32_t>> in(n, std::vector<std::int32_t>(count, -1));
        std::vector<std::vector<std::int32_t>> out;
        out.reserve(n);
        for (int peer = 0; peer < pg->size(); ++peer) out.emplace_back(count, pg->rank() * 100 + peer);
        auto batch = pg->batch();
        for (int peer = 0; peer < pg->size(); ++peer) batch.recv(in[index(peer)], peer, {.tag = 1});
        for (int peer = 0; peer < pg->size(); ++peer) batch.send(out[index(peer)], peer, {.tag = 1});
        const auto before = pg->sequence_number();
        const auto work = batch.run({.async_op = is_async});
        work.wait();
        EXPECT_EQ(work.op(), OpType::coalesced);
        EXPECT_GT(work.sequence(), 0U);
        EXPECT_EQ(pg->sequence_number(), before) << "collectives are counted apart";
        for (int peer = 0; peer < pg->size(); ++peer) {
          EXPECT_EQ(in[index(peer)], std::vector<std::int32_t>(count, peer * 100 + pg->rank()));
        }
      }
    }
  });
}

TEST_P(Batches, OfNothingIsCompleted) {
  run([](const ProcessGroupPtr& pg) {
    auto batch = pg->batch();
    const auto before = pg->sequence_number();
    EXPECT_TRUE(batch.run().is_success());
    EXPECT_TRUE(batch.run({.async_op = true}).is_success());
    EXPECT_EQ(pg->sequence_number(), before);
    expect_works(*pg);
  });
}

TEST_P(Batches, CanBeFilledAgain) {
  run([](const ProcessGroupPtr& pg) {
    auto batch = pg->batch();
    for (int round = 1; round <= 3; ++round) {
      std::vector<float> x(100, 1);
      batch.all_reduce(x);
      batch.all_reduce(x);
      batch.run();
      EXPECT_EQ(x, std::vector<float>(100, static_cast<float>(pg->size() * pg->size())));
    }
  });
}

TEST_P(Batches, RefuseWhatBelongsElsewhere) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> x(4, 1);
    auto batch = pg->batch();
    expect_refused<ValueError>(*pg, "run()", [&] { batch.all_reduce(x, {.async_op = true}); });
    expect_refused<ValueError>(*pg, "run()", [&] { batch.all_reduce(x, {.timeout = 5s}); });
    expect_refused<ValueError>(*pg, "root", [&] { batch.broadcast(x, {.root = 99}); });
    EXPECT_EQ(batch.size(), 0U);
    batch.all_reduce(x);
    batch.send(x, 0);
    expect_refused<ValueError>(*pg, "not both", [&] { batch.run(); });
    EXPECT_EQ(x, std::vector<float>(4, 1));
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Batches, every_arrangement(), arrangement_name);

class BatchErrors : public OnEveryArrangement {};

TEST_P(BatchErrors, OneFailureFailsTheWorkWhenAllHaveEnded) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<int> good(3, -1);
    std::vector<int> wrong(5, -1);
    const std::vector<int> out(3, 4);
    auto batch = pg->batch();
    if (pg->rank() == 0) {
      batch.recv(wrong, 1, {.tag = 1});
      batch.recv(good, 1, {.tag = 2});
      EXPECT_THROW(batch.run(), MismatchError);
      EXPECT_EQ(good, out);
    } else if (pg->rank() == 1) {
      batch.send(out, 0, {.tag = 1});
      batch.send(out, 0, {.tag = 2});
      batch.run();
    }
    expect_works(*pg);
  });
}

TEST_P(BatchErrors, ReceivesThatNobodyAnswersTimeOut) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<int> x(3, -1);
    auto batch = pg->batch();
    batch.recv(x, (pg->rank() + 1) % pg->size(), {.tag = 8});
    EXPECT_THROW(batch.run({.timeout = 20ms}), OperationTimeoutError);
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, BatchErrors, arrangements_of_several(), arrangement_name);

}  // namespace
}  // namespace cohort::test
