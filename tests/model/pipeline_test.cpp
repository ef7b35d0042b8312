// SPDX-License-Identifier: BSD-3-Clause
// Chunks through staging buffers: what is drained is what was filled, and no buffer is written while it is read, even
// from one operation to the next.
#include "backends/shm/protocol/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "model/shm_parts.h"
#include "model/weak_atomics.h"

namespace cohort::model::test {
namespace {

using ::testing::HasSubstr;

/// `depth` is the number of staging buffers of each rank; any value other than stage_depth is wrong on purpose.
template <class A, int n, std::uint32_t depth = shm::stage_depth>
class StageBoard : public PostBoard<A, n> {
 public:
  using Atomics = A;
  static constexpr int ranks = n;

  StageBoard() {
    for (int rank = 0; rank < ranks; ++rank) {
      name_flag(filled(rank), "filled " + std::to_string(rank));
      name_flag(drained(rank), "drained " + std::to_string(rank));
      for (std::uint32_t c = 0; c < depth; ++c) {
        const auto number = std::to_string(rank) + "." + std::to_string(c);
        name(input(rank, c), "input " + number);
        name(result(rank, c), "result " + number);
      }
    }
  }
  shm::Flag<Atomics>& filled(int rank) { return parts_[static_cast<std::size_t>(rank)].filled; }
  shm::Flag<Atomics>& drained(int rank) { return parts_[static_cast<std::size_t>(rank)].drained; }
  Plain<int>& input(int rank, std::uint32_t c) { return parts_[static_cast<std::size_t>(rank)].inputs[c % depth]; }
  Plain<int>& result(int rank, std::uint32_t c) { return parts_[static_cast<std::size_t>(rank)].results[c % depth]; }

 private:
  struct Part {
    shm::Flag<Atomics> filled;
    shm::Flag<Atomics> drained;
    std::array<Plain<int>, depth> inputs;
    std::array<Plain<int>, depth> results;
  };
  std::array<Part, static_cast<std::size_t>(ranks)> parts_;
};

struct Plan {
  std::uint32_t chunks = 3;
  std::uint32_t operations = 2;
  bool are_posted = true;  ///< each operation starts when all ranks have posted it, as in the shared-memory engine
  int root = -1;           ///< the root of a broadcast; -1: all ranks fill and drain
};

template <class Board>
class Stager {
 public:
  Stager(Board& board, int rank, const Plan& plan)
      : board_(board), order_(board, rank, Board::ranks), rank_(rank), plan_(plan) {}

  void run(void (Stager::*operation)(std::uint32_t)) {
    for (std::uint32_t i = 0; i < plan_.operations; ++i) {
      if (plan_.are_posted) meet();
      (this->*operation)(i);
      base_ += plan_.chunks;
    }
  }

  void exchange(std::uint32_t i) {
    const bool fills = plan_.root < 0 || plan_.root == rank_;
    const bool drains = plan_.root != rank_;
    shm::exchange_chunks(
        board_, rank_, Board::ranks, base_, plan_.chunks, fills, drains, watch_,
        [&](std::uint32_t c) { board_.input(rank_, c) = value(rank_, i, c); },
        [&](std::uint32_t c, const auto& await_filled) {
          for (int peer = 0; peer < Board::ranks; ++peer) {
            if (peer == rank_ || (plan_.root >= 0 && peer != plan_.root)) continue;
            await_filled(peer);
            require(board_.input(peer, c) == value(peer, i, c), "what is drained was filled for this chunk");
          }
        });
  }

  void reduce(std::uint32_t i) {
    shm::reduce_chunks(
        board_, rank_, Board::ranks, base_, plan_.chunks, watch_,
        [&](std::uint32_t c) { board_.input(rank_, c) = value(rank_, i, c); },
        [&](std::uint32_t c) {
          int sum = 0;
          for (int peer = 0; peer < Board::ranks; ++peer) {
            sum += peer == rank_ ? value(rank_, i, c) : int{board_.input(peer, c)};
          }
          board_.result(rank_, c) = sum + rank_;  // so that the slices of different ranks differ
        },
        [&](std::uint32_t c, int peer) {
          int sum = peer;
          for (int rank = 0; rank < Board::ranks; ++rank) sum += value(rank, i, c);
          require(board_.result(peer, c) == sum, "what is collected was combined for this chunk");
        });
  }

 private:
  static int value(int rank, std::uint32_t operation, std::uint32_t chunk) {
    return 10'000 * (rank + 1) + 100 * static_cast<int>(operation + 1) + static_cast<int>(chunk);
  }
  void meet() {
    const auto k = order_.begin();
    shm::raise(board_.post(rank_, k).flag, k);
    order_.await_all_posts(k, watch_);
  }

  Board& board_;
  shm::PostOrder<Board> order_;
  ShortWatch watch_;
  const int rank_;
  const Plan plan_;
  std::uint32_t base_ = 0;
};

template <class Board>
Report explore_stages(const Plan& plan, void (Stager<Board>::*operation)(std::uint32_t)) {
  return explore({.executions = 10'500}, [&](Program& program) {
    auto& board = program.make<Board>();
    for (int rank = 0; rank < Board::ranks; ++rank) {
      auto& stager = program.make<Stager<Board>>(board, rank, plan);
      program.thread("rank " + std::to_string(rank), [&stager, operation] { stager.run(operation); });
    }
  });
}

template <int ranks>
using Right = StageBoard<ModelAtomics, ranks>;
template <int ranks>
using OneBuffer = StageBoard<ModelAtomics, ranks, 1>;
template <Weakness weakness>
using Weak = StageBoard<WeakAtomics<weakness>, 2>;

template <class Board>
void expect_holds(const Plan& plan, void (Stager<Board>::*operation)(std::uint32_t)) {
  const auto report = explore_stages<Board>(plan, operation);
  EXPECT_FALSE(report.failure) << report;
  EXPECT_GE(report.distinct, 10'000U);
}
template <class Board>
std::string failure_of(const Plan& plan, void (Stager<Board>::*operation)(std::uint32_t)) {
  return failure(explore_stages<Board>(plan, operation));
}

TEST(PipelineTest, ExchangeHolds) {
  expect_holds<Right<2>>({.chunks = 5}, &Stager<Right<2>>::exchange);
  expect_holds<Right<3>>({.chunks = 3}, &Stager<Right<3>>::exchange);
}

TEST(PipelineTest, OneFillsAndTheOthersDrain) {
  expect_holds<Right<2>>({.chunks = 5, .root = 1}, &Stager<Right<2>>::exchange);
  expect_holds<Right<3>>({.chunks = 3, .root = 0}, &Stager<Right<3>>::exchange);
}

TEST(PipelineTest, ReduceHolds) {
  expect_holds<Right<2>>({.chunks = 5}, &Stager<Right<2>>::reduce);
  expect_holds<Right<3>>({.chunks = 3}, &Stager<Right<3>>::reduce);
}

TEST(PipelineTest, ReduceNeedsNothingBetweenOperations) {
  expect_holds<Right<2>>({.chunks = 3, .operations = 3, .are_posted = false}, &Stager<Right<2>>::reduce);
  expect_holds<Right<3>>({.chunks = 3, .are_posted = false}, &Stager<Right<3>>::reduce);
}

TEST(PipelineTest, ExchangeNeedsAllToHaveComeToTheNextOperation) {
  EXPECT_THAT(failure_of<Right<2>>({.are_posted = false}, &Stager<Right<2>>::exchange),
              HasSubstr("data race on input"));
  EXPECT_THAT(failure_of<Right<3>>({.are_posted = false, .root = 0}, &Stager<Right<3>>::exchange),
              HasSubstr("data race on input"));
}

TEST(PipelineTest, WithOneBufferAChunkIsWrittenTooEarly) {
  const auto race_or = [](const char* wrong_value) {
    return ::testing::AnyOf(HasSubstr("data race on input"), HasSubstr(wrong_value));
  };
  EXPECT_THAT(failure_of<OneBuffer<2>>({}, &Stager<OneBuffer<2>>::exchange), race_or("what is drained was filled"));
  EXPECT_THAT(failure_of<OneBuffer<3>>({.root = 0}, &Stager<OneBuffer<3>>::exchange),
              race_or("what is drained was filled"));
  EXPECT_THAT(failure_of<OneBuffer<2>>({}, &Stager<OneBuffer<2>>::reduce), race_or("what is collected was combined"));
}

TEST(PipelineTest, WeakerOrdersAreCaught) {
  using NoRelease = Weak<Weakness::no_release>;
  using NoAcquire = Weak<Weakness::no_acquire>;
  using NoLightFence = Weak<Weakness::no_light_fence>;
  using NoHeavyFence = Weak<Weakness::no_heavy_fence>;
  using NoWake = Weak<Weakness::no_wake>;
  EXPECT_THAT(failure_of<NoRelease>({}, &Stager<NoRelease>::exchange), HasSubstr("data race on input"));
  EXPECT_THAT(failure_of<NoAcquire>({}, &Stager<NoAcquire>::reduce), HasSubstr("data race on"));
  EXPECT_THAT(failure_of<NoLightFence>({}, &Stager<NoLightFence>::exchange), HasSubstr("sleeps on"));
  EXPECT_THAT(failure_of<NoHeavyFence>({}, &Stager<NoHeavyFence>::reduce), HasSubstr("sleeps on"));
  EXPECT_THAT(failure_of<NoWake>({}, &Stager<NoWake>::reduce), HasSubstr("sleeps on"));
}

}  // namespace
}  // namespace cohort::model::test
