// SPDX-License-Identifier: BSD-3-Clause
// The order of posts: two slots per rank that are written again only when nobody reads them any more.
#include "backends/shm/protocol/posts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/shm_parts.h"
#include "model/weak_atomics.h"

namespace cohort::model::test {
namespace {

using ::testing::HasSubstr;

/// Every slot is written at least twice after it has been read.
constexpr std::uint32_t operations = 3 * shm::post_depth + 1;

int payload_of(int rank, std::uint32_t k) {
  return 100 * rank + static_cast<int>(k);
}

/// One rank's part in successive operations.
template <class Board>
class Poster {
 public:
  Poster(Board& board, int rank, int size) : board_(board), order_(board, rank, size), rank_(rank), size_(size) {}

  void publish(std::uint32_t k) {
    auto& slot = board_.post(rank_, k);
    slot.payload = payload_of(rank_, k);
    shm::raise(slot.flag, k);
  }
  void read(int peer, std::uint32_t k) {
    require(board_.post(peer, k).payload == payload_of(peer, k), "the payload is that of the operation");
  }

  /// What a small all-reduce does.
  void exchange() {
    const auto k = order_.begin();
    publish(k);
    order_.await_all_posts(k, watch_);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) read(peer, k);
    }
  }
  /// What a small broadcast does: all ranks wait for all, and only the root's payload is read.
  void broadcast(int root) {
    const auto k = order_.begin();
    publish(k);
    order_.await_all_posts(k, watch_);
    if (rank_ != root) read(root, k);
  }

 private:
  Board& board_;
  shm::PostOrder<Board> order_;
  ShortWatch watch_;
  const int rank_;
  const int size_;
};

template <class Atomics, int ranks, std::uint32_t depth = shm::post_depth>
Report explore_posts(const Options& options, const auto& body) {
  return explore(options, [&body](Program& program) {
    using Board = PostBoard<Atomics, ranks, depth>;
    auto& board = program.make<Board>();
    for (int rank = 0; rank < ranks; ++rank) {
      auto& poster = program.make<Poster<Board>>(board, rank, ranks);
      program.thread("rank " + std::to_string(rank), [&poster, &body] { body(poster); });
    }
  });
}

const auto exchanges = [](auto& poster) {
  for (std::uint32_t i = 0; i < operations; ++i) poster.exchange();
};
const auto broadcasts = [](auto& poster) {
  for (std::uint32_t i = 0; i < operations; ++i) poster.broadcast(0);
};
/// The root changes, and in between all ranks read all.
const auto mixture = [](auto& poster) {
  for (std::uint32_t i = 0; i < operations; ++i) {
    if (i == operations / 3) {
      poster.exchange();
    } else {
      poster.broadcast(i < operations / 2 ? 0 : 1);
    }
  }
};

constexpr Options thorough{.executions = 12'500};

template <int ranks>
void expect_holds(const auto& body) {
  const auto report = explore_posts<ModelAtomics, ranks>(thorough, body);
  EXPECT_FALSE(report.failure) << report;
  EXPECT_GE(report.distinct, 10'000U);
}

TEST(PostsTest, ExchangesHold) {
  expect_holds<2>(exchanges);
  expect_holds<3>(exchanges);
}

TEST(PostsTest, ARootThatReadsNothingDoesNotOverrunTheOthers) {
  expect_holds<2>(broadcasts);
  expect_holds<3>(broadcasts);
}

TEST(PostsTest, ChangingRootsHold) {
  expect_holds<2>(mixture);
  expect_holds<3>(mixture);
}

TEST(PostsTest, ARingThatIsTooShortIsWrittenTooEarly) {
  EXPECT_THAT(failure(explore_posts<ModelAtomics, 2, shm::post_depth - 1>(thorough, broadcasts)),
              HasSubstr("data race on payload"));
  EXPECT_THAT(failure(explore_posts<ModelAtomics, 3, shm::post_depth - 1>(thorough, broadcasts)),
              HasSubstr("data race on payload"));
}

template <Weakness weakness>
std::string failure_with(const auto& body) {
  return failure(explore_posts<WeakAtomics<weakness>, 2>(thorough, body));
}

TEST(PostsTest, WeakerOrdersAreCaught) {
  EXPECT_THAT(failure_with<Weakness::no_release>(exchanges), HasSubstr("data race on payload"));
  EXPECT_THAT(failure_with<Weakness::no_acquire>(broadcasts), HasSubstr("data race on payload"));
  EXPECT_THAT(failure_with<Weakness::no_light_fence>(exchanges), HasSubstr("sleeps on post"));
  EXPECT_THAT(failure_with<Weakness::no_heavy_fence>(broadcasts), HasSubstr("sleeps on post"));
  EXPECT_THAT(failure_with<Weakness::no_wake>(broadcasts), HasSubstr("sleeps on post"));
}

}  // namespace
}  // namespace cohort::model::test
