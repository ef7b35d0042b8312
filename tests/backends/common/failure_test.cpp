// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "backends/shm/protocol/failure.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

const Failure rank_2_lost{.kind = ErrorKind::peer_lost, .rank = 2, .text = "rank 2 is gone: failure: 3 1 0 x"};

/// The error that operation `sequence` of a broken group gets.
std::exception_ptr refused(BrokenGroup& group, const Failure& failure, std::uint64_t sequence) {
  try {
    group.refuse(failure, {.group = "pair"}, Call(OpType::all_reduce, sequence, 1s));
  } catch (...) {
    return std::current_exception();
  }
}

TEST(Failure, IsCarriedByTheErrorsOfAllLaterOperations) {
  BrokenGroup group;
  const auto first = refused(group, rank_2_lost, 4);
  const auto later = refused(group, rank_2_lost, 5);
  try {
    std::rethrow_exception(later);
  } catch (const PeerLostError& e) {
    EXPECT_EQ(e.message(),
              "the group is broken since all_reduce #4: " + rank_2_lost.text + "; make a new group or call shrink()");
    EXPECT_EQ(e.context().rank, 2);
  }
  for (const auto& error : {first, later}) {
    const auto carried = failure_of(error);
    EXPECT_EQ(carried.kind, rank_2_lost.kind);
    EXPECT_EQ(carried.rank, rank_2_lost.rank);
    EXPECT_EQ(carried.text, rank_2_lost.text);
    EXPECT_EQ(carried.cause, nullptr);
  }
}

TEST(Failure, OfAnErrorThatCarriesNoneIsWhatTheErrorSays) {
  const auto said = failure_of(std::make_exception_ptr(
      MismatchError("called otherwise", {.rank = 3, .cause = std::make_exception_ptr(std::runtime_error("below"))})));
  EXPECT_EQ(said.kind, ErrorKind::mismatch);
  EXPECT_EQ(said.rank, 3);
  EXPECT_EQ(said.text, "called otherwise");
  EXPECT_EQ(failure_of(std::make_exception_ptr(std::runtime_error("of an engine"))).text, "of an engine");
}

TEST(Failure, OfAWholeGroupReachesTheErrorsOfAPartThroughItsMemory) {
  const shm::Board board = shm::Board::make(shm::heap_segment(shm::Board::size_for(2)), 2);
  Failure of_part{.kind = ErrorKind::aborted, .rank = 1, .text = rank_2_lost.text};
  of_part.cause = std::make_shared<Failure>(rank_2_lost);
  EXPECT_TRUE(record_failure(board, of_part));
  EXPECT_FALSE(record_failure(board, {.text = "something later"}));

  BrokenGroup group;
  refused(group, *recorded_failure(board), 1);
  const auto carried = failure_of(refused(group, *recorded_failure(board), 2));
  EXPECT_EQ(carried.kind, ErrorKind::aborted);
  EXPECT_EQ(carried.rank, 1);
  ASSERT_NE(carried.cause, nullptr);
  EXPECT_EQ(carried.cause->kind, rank_2_lost.kind);
  EXPECT_EQ(carried.cause->rank, rank_2_lost.rank);
  EXPECT_EQ(carried.cause->text, rank_2_lost.text);
}

TEST(Failure, SurvivesTheWayThroughAStore) {
  for (const auto kind :
       {ErrorKind::backend, ErrorKind::timeout, ErrorKind::peer_lost, ErrorKind::mismatch, ErrorKind::aborted}) {
    for (const bool is_explained : {false, true}) {
      for (const std::string text : {"", " rank 4 called:\nbroadcast "}) {
        const auto back = decode_failure(encode({.kind = kind, .rank = 4, .is_explained = is_explained, .text = text}));
        ASSERT_TRUE(back);
        EXPECT_EQ(back->kind, kind);
        EXPECT_EQ(back->rank, 4);
        EXPECT_EQ(back->is_explained, is_explained);
        EXPECT_EQ(back->text, text);
      }
    }
  }
  EXPECT_EQ(decode_failure(encode({}))->rank, -1);
}

TEST(Failure, InAStoreIsBounded) {
  const std::string longest(most_failure_text, 'x');
  EXPECT_EQ(decode_failure(encode({.text = longest + "y"}))->text, longest);
  EXPECT_FALSE(decode_failure("peer_lost 1 0 " + longest + "y"));
}

TEST(Failure, ThatCannotBeReadIsNone) {
  for (const std::string nonsense :
       {"", " ", "   ", "9999 1 x", "peer_lost", "peer_lost 1", "peer_lost 1 0", "peer_lost x 0 text",
        "peer_lost 1 2 text", "peer_lost -2 0 text", "peer_lost 99999999999 0 text", "key 1 0 text", "rank 2 is gone",
        "failure: peer_lost 1 0 text", " peer_lost 1 0 text", "peer_lost  1 0 text"}) {
    EXPECT_FALSE(decode_failure(nonsense)) << nonsense;
  }
}

}  // namespace
}  // namespace cohort::test
