// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives run in the order in which they are issued, from any thread, and match those of the other ranks.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "group/arrangements.h"

namespace cohort::test {
namespace {

class Ordering : public OnEveryArrangement {};

TEST_P(Ordering, AThousandOutstandingWaitedForInRandomOrder) {
  run([](const ProcessGroupPtr& pg) {
    constexpr std::size_t operations = 1000;
    const auto n = static_cast<std::int64_t>(pg->size());
    std::vector<std::vector<std::int64_t>> data;
    std::vector<Work> works;
    const auto before = pg->sequence_number();
    for (std::size_t i = 0; i < operations; ++i) {
      // Sizes differ, so that a wrong order is a mismatch; some of them need several chunks.
      data.emplace_back(i % 100 == 99 ? 6000 + i : i % 50 + 1, static_cast<std::int64_t>(i) * (pg->rank() + 1));
      works.push_back(pg->all_reduce(data.back(), {.async_op = true}));
      EXPECT_EQ(works.back().sequence(), before + i + 1);
    }
    std::shuffle(works.begin(), works.end(), std::mt19937(static_cast<unsigned>(pg->rank())));
    for (const auto& each : works) each.wait();
    for (std::size_t i = 0; i < operations; ++i) {
      EXPECT_EQ(data[i], std::vector<std::int64_t>(data[i].size(), static_cast<std::int64_t>(i) * n * (n + 1) / 2));
    }
    EXPECT_EQ(pg->sequence_number(), before + operations);
  });
}

TEST_P(Ordering, DifferentCollectivesMayBeUnderWayTogether) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    const auto un = index(n);
    constexpr std::size_t rounds = 25;
    struct Round {
      std::vector<int> sum, root, part, all, pieces, piece;
    };
    std::vector<Round> data(rounds);
    std::vector<Work> works;
    for (std::size_t i = 0; i < rounds; ++i) {
      auto& x = data[i];
      const std::size_t count = i % 5 == 4 ? 5000 : i + 1;
      const int value = pg->rank() + static_cast<int>(i);
      x.sum.assign(count, value);
      x.root.assign(count, value);
      x.part.assign(count, value);
      x.all.assign(count * un, -1);
      x.pieces.assign(count * un, value);
      x.piece.assign(count, -1);
      works.push_back(pg->all_reduce(x.sum, {.async_op = true}));
      works.push_back(pg->broadcast(x.root, {.root = static_cast<int>(i % un), .async_op = true}));
      works.push_back(pg->all_gather(x.all, x.part, {.async_op = true}));
      works.push_back(pg->barrier({.async_op = true}));
      works.push_back(pg->reduce_scatter(x.piece, ConstBuffer(x.pieces), {.async_op = true}));
    }
    std::shuffle(works.begin(), works.end(), std::mt19937(static_cast<unsigned>(pg->rank())));
    for (const auto& each : works) each.wait();
    for (std::size_t i = 0; i < rounds; ++i) {
      const auto& x = data[i];
      const int number = static_cast<int>(i);
      const int sum = n * (n - 1) / 2 + n * number;
      EXPECT_EQ(x.sum, std::vector<int>(x.sum.size(), sum));
      EXPECT_EQ(x.root, std::vector<int>(x.root.size(), static_cast<int>(i % un) + number));
      for (std::size_t r = 0; r < un; ++r) EXPECT_EQ(x.all[r * x.part.size()], static_cast<int>(r) + number);
      EXPECT_EQ(x.piece, std::vector<int>(x.piece.size(), sum));
    }
  });
}

TEST_P(Ordering, RanksThatWaitForNobodyDoNotRunTooFarAhead) {
  run([](const ProcessGroupPtr& pg) {
    // The root of a broadcast or scatter, and all ranks but the root of a reduce or gather, take no data from others.
    const auto n = pg->size();
    std::mt19937 random(static_cast<unsigned>(pg->rank()));
    for (int i = 0; i < 300; ++i) {
      for (auto pause = random() % 20; pause > 0; --pause) std::this_thread::yield();
      const int root = i / 40 % n;
      const bool is_root = pg->rank() == root;
      const std::size_t count = i % 30 == 29 ? 5000 : 3;
      std::vector<int> x(count, pg->rank() + i);
      std::vector<std::vector<int>> all(is_root ? index(n) : 0, std::vector<int>(count, i));
      switch (i % 4) {
        case 0:
          pg->broadcast(x, {.root = root});
          EXPECT_EQ(x, std::vector<int>(count, root + i));
          break;
        case 1:
          pg->reduce(x, {.root = root});
          EXPECT_EQ(x, std::vector<int>(count, is_root ? n * i + n * (n - 1) / 2 : pg->rank() + i));
          break;
        case 2:
          pg->gather(all, x, {.root = root});
          for (std::size_t r = 0; r < all.size(); ++r) {
            EXPECT_EQ(all[r], std::vector<int>(count, static_cast<int>(r) + i));
          }
          break;
        default:
          pg->scatter(x, all, {.root = root});
          EXPECT_EQ(x, std::vector<int>(count, i));
      }
    }
  });
}

TEST_P(Ordering, ABarrierEndsAfterWhatWasQueuedBefore) {
  run([](const ProcessGroupPtr& pg) {
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> data(20, std::vector<float>(20'000, 1));
      std::vector<Work> works;
      works.reserve(data.size());
      for (auto& each : data) works.push_back(pg->all_reduce(each, {.async_op = true}));
      pg->barrier({.async_op = round % 2 == 0}).wait();
      for (const auto& each : works) EXPECT_TRUE(each.is_success());
      for (const auto& each : data) EXPECT_EQ(each[19'999], static_cast<float>(pg->size()));
    }
  });
}

TEST_P(Ordering, ABlockingOperationTakesItsTurn) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<std::int64_t> x(3000, 1);
    const auto n = static_cast<std::int64_t>(pg->size());
    // All operations use the same memory, so that a wrong order changes the values.
    const auto first = pg->all_reduce(x, {.async_op = true});
    pg->all_reduce(x, {.op = ReduceOp::product()});
    EXPECT_TRUE(first.is_success());
    std::int64_t expected = 1;
    for (std::int64_t i = 0; i < n; ++i) expected *= n;
    EXPECT_EQ(x, std::vector<std::int64_t>(3000, expected));
  });
}

TEST_P(Ordering, FromSeveralThreadsOfARank) {
  run([](const ProcessGroupPtr& pg) {
    // A token that is passed between the threads gives all ranks the same order; the operations themselves overlap.
    constexpr int threads = 4;
    constexpr int rounds = 40;
    std::atomic<int> turn{0};
    std::vector<std::vector<std::int32_t>> data(index(threads * rounds));
    std::vector<std::uint64_t> sequences(index(threads * rounds));
    std::vector<std::jthread> all;
    all.reserve(threads);
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        std::vector<Work> works;
        for (int i = t; i < threads * rounds; i += threads) {
          auto& mine = data[index(i)];
          mine.assign(index(i % 11 == 10 ? 9000 : i + 1), pg->rank() + i);
          while (turn.load() != i) std::this_thread::yield();
          works.push_back(pg->all_reduce(mine, {.async_op = true}));
          sequences[index(i)] = works.back().sequence();
          turn = i + 1;
        }
        for (const auto& each : works) each.wait();
      });
    }
    all.clear();
    const int n = pg->size();
    for (int i = 0; i < threads * rounds; ++i) {
      EXPECT_EQ(data[index(i)], std::vector<std::int32_t>(data[index(i)].size(), n * (n - 1) / 2 + n * i)) << i;
      EXPECT_EQ(sequences[index(i)], sequences[0] + index(i));
    }
  });
}

TEST_P(Ordering, BlockingCallsOfSeveralThreadsInterleave) {
  run([](const ProcessGroupPtr& pg) {
    // All operations are equal, so any order matches; each runs exactly once.
    constexpr int threads = 3;
    constexpr int rounds = 60;
    const auto before = pg->sequence_number();
    std::atomic<int> right{0};
    std::vector<std::jthread> all;
    all.reserve(threads);
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        for (int i = 0; i < rounds; ++i) {
          std::vector<float> x(50, 1);
          t == 0 ? pg->all_reduce(x, {.async_op = true}).wait() : static_cast<void>(pg->all_reduce(x));
          if (x == std::vector<float>(50, static_cast<float>(pg->size()))) ++right;
        }
      });
    }
    all.clear();
    EXPECT_EQ(right, threads * rounds);
    EXPECT_EQ(pg->sequence_number(), before + index(threads * rounds));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Ordering, every_arrangement(), arrangement_name);

}  // namespace
}  // namespace cohort::test
