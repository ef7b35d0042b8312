// SPDX-License-Identifier: BSD-3-Clause
//
// Deadlines, errors and the division into calls, on a test double of MPI that misbehaves on request.
#include "backends/mpi/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "backends/mpi/mpi_double.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using Ends = MpiDouble::Ends;

class MpiBackendTest : public ::testing::Test {
 protected:
  MpiBackendTest() { runtime_.start(Deadline::after(60s)); }

  std::shared_ptr<mpi::MpiBackend> backend(int size = 2, std::size_t largest_count = 1U << 30U) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return std::make_shared<mpi::MpiBackend>(
        mpi::MpiParts{.runtime = &runtime_, .world_ranks = ranks, .group = "g", .largest_count = largest_count});
  }
  static Call call(OpType op, std::chrono::milliseconds timeout = 60s) { return {op, 5, timeout}; }
  static Operation sum(std::vector<float>& data) {
    const auto memory = std::as_writable_bytes(std::span(data));
    return Operation::all_reduce(memory, memory, DType::f32, ReduceOp::sum());
  }
  static Bytes bytes(std::string& text) { return std::as_writable_bytes(std::span(text)); }

  MpiDouble library_;
  mpi::Runtime runtime_{library_};
};

TEST_F(MpiBackendTest, AMissedDeadlineEndsTheGroupAndLeavesEverythingAsItIs) {
  std::vector<float> x(4, 1);
  {
    const auto pg = backend();
    library_.requests_end = Ends::never;
    auto short_call = call(OpType::all_reduce, 20ms);
    const auto before = Deadline::Clock::now();
    EXPECT_ERROR(OperationTimeoutError, pg->perform(sum(x), short_call), "all_reduce #5 did not end within 20 ms");
    EXPECT_LT(Deadline::Clock::now() - before, 5s);

    library_.requests_end = Ends::well;
    auto next = call(OpType::barrier);
    EXPECT_ERROR(AbortedError, pg->perform(Operation::barrier(), next), "all_reduce #5 missed its deadline");
    std::string text = "abc";
    auto message = call(OpType::send);
    EXPECT_THROW(pg->start_send(Operation::send(bytes(text), 1, 0), message), AbortedError);
    EXPECT_THROW(pg->start_recv(Operation::recv(bytes(text), 1, 0), message), AbortedError);
  }
  EXPECT_EQ(library_.freed, 0);
  EXPECT_TRUE(runtime_.has_left_behind());
}

TEST_F(MpiBackendTest, AGroupThatIsDoneFreesItsCommunicator) {
  auto pg = backend();
  auto ok = call(OpType::barrier);
  pg->perform(Operation::barrier(), ok);
  pg.reset();
  EXPECT_EQ(library_.freed, 1);
  EXPECT_FALSE(runtime_.has_left_behind());
}

TEST_F(MpiBackendTest, ErrorsCarryMpisWordsAndEndTheGroup) {
  std::vector<float> x(4, 1);
  const auto failing = backend();
  library_.requests_end = Ends::badly;
  auto first = call(OpType::all_reduce);
  EXPECT_ERROR(BackendError, failing->perform(sum(x), first), "error 13 of the double");
  EXPECT_THROW(failing->perform(Operation::barrier(), first), AbortedError);

  library_.requests_end = Ends::well;
  const auto refused = backend();
  library_.refuses = true;
  EXPECT_ERROR(BackendError, refused->perform(sum(x), first), "the double refuses all_reduce");
  library_.refuses = false;
  EXPECT_THROW(refused->perform(Operation::barrier(), first), AbortedError);
}

TEST_F(MpiBackendTest, AbortFreesWhoWaitsHere) {
  const auto pg = backend();
  library_.requests_end = Ends::never;
  auto waiting = std::async(std::launch::async, [&] {
    auto patient = call(OpType::barrier);
    pg->perform(Operation::barrier(), patient);
  });
  pg->abort("no more");
  EXPECT_ERROR(AbortedError, waiting.get(), "rank 0 aborted the group: no more");
  EXPECT_FALSE(pg->capabilities().aborting) << "the peers are not told";
}

TEST_F(MpiBackendTest, ShrinkSaysWhatCanBeDoneInstead) {
  const auto pg = backend();
  EXPECT_ERROR(NotSupportedError, pg->shrink({}, Deadline::never()), "Restart the job from its last checkpoint");
  EXPECT_FALSE(pg->capabilities().shrinking);
  EXPECT_FALSE(pg->capabilities().regrouping);
  auto ok = call(OpType::barrier);
  pg->perform(Operation::barrier(), ok);  // it stays usable
}

TEST_F(MpiBackendTest, LongOperationsGoInPieces) {
  const auto pg = backend(2, 10);
  auto ok = call(OpType::all_reduce);
  std::vector<float> x(25, 1);
  pg->perform(sum(x), ok);
  EXPECT_THAT(library_.calls, ElementsAre("all_reduce 10", "all_reduce 10", "all_reduce 5"));

  library_.calls.clear();
  std::string a(12, 'a');
  std::string b(12, 'b');
  const std::vector<Bytes> both{bytes(a), bytes(b)};
  const std::vector<ConstBytes> const_both(both.begin(), both.end());
  pg->perform(Operation::all_gather(bytes(a), both), ok);
  EXPECT_THAT(library_.calls, ElementsAre("broadcast 0 10", "broadcast 0 2", "broadcast 1 10", "broadcast 1 2"));

  library_.calls.clear();
  pg->perform(Operation::reduce_scatter(const_both, bytes(a), DType::u8, ReduceOp::sum()), ok);
  EXPECT_THAT(library_.calls, ElementsAre("reduce 10", "reduce 2", "reduce 10", "reduce 2"));
}

TEST_F(MpiBackendTest, EqualAndUnevenGathersAreDifferentCalls) {
  const auto pg = backend();
  auto ok = call(OpType::all_gather);
  std::string a(4, 'a');
  std::string b(4, 'b');
  std::string c(5, 'c');
  pg->perform(Operation::all_gather(bytes(a), std::vector<Bytes>{bytes(a), bytes(b)}), ok);
  pg->perform(Operation::all_gather(bytes(a), std::vector<Bytes>{bytes(a), bytes(c)}), ok);
  EXPECT_THAT(library_.calls, ElementsAre("all_gather 4", "all_gather_uneven 2"));
}

TEST_F(MpiBackendTest, TheEarliestReceiveThatFitsGetsTheMessage) {
  const auto pg = backend(3);
  auto ok = call(OpType::recv);
  std::string any(3, ' ');
  std::string from_two(3, ' ');
  const auto first = pg->start_recv(Operation::recv(bytes(any), Backend::any_source, 1), ok);
  const auto second = pg->start_recv(Operation::recv(bytes(from_two), 2, 1), ok);
  library_.letters = {{2, 1, "one"}, {2, 1, "two"}};
  // The later receive looks first, and finds the message that belongs to the earlier one.
  EXPECT_TRUE(second->advance());
  EXPECT_TRUE(first->advance());
  EXPECT_EQ(any, "one");
  EXPECT_EQ(from_two, "two");
  EXPECT_EQ(first->source(), 2);
}

TEST_F(MpiBackendTest, AMessageOfAnotherSizeTouchesNothing) {
  const auto pg = backend();
  auto ok = call(OpType::recv);
  for (const std::string sent : {"much too long", "a"}) {
    library_.letters = {{1, 4, sent}, {1, 4, "abc"}};
    std::string got(3, ' ');
    EXPECT_ERROR(MismatchError, pg->perform(Operation::recv(bytes(got), 1, 4), ok),
                 "rank 1 sent " + std::to_string(sent.size()) + " bytes, and rank 0 expects 3");
    EXPECT_EQ(got, "   ");
    EXPECT_EQ(pg->perform(Operation::recv(bytes(got), 1, 4), ok), 1) << "the next one is not disturbed";
    EXPECT_EQ(got, "abc");
  }
}

TEST_F(MpiBackendTest, AReceiveThatFoundNothingCanBeTakenBack) {
  const auto pg = backend();
  std::string got(3, ' ');
  auto short_call = call(OpType::recv, 5ms);
  EXPECT_ERROR(OperationTimeoutError, pg->perform(Operation::recv(bytes(got), 1, 4), short_call),
               "rank 1 has not sent it");
  library_.letters = {{1, 4, "abc"}};
  auto ok = call(OpType::recv);
  EXPECT_EQ(pg->perform(Operation::recv(bytes(got), 1, 4), ok), 1);
}

TEST_F(MpiBackendTest, ASendThatIsGivenUpEndsTheGroup) {
  const auto pg = backend();
  std::string text = "abc";
  auto short_call = call(OpType::send, 5ms);
  library_.requests_end = Ends::never;
  EXPECT_ERROR(OperationTimeoutError, pg->perform(Operation::send(bytes(text), 1, 4), short_call),
               "rank 1 has not received it");
  library_.requests_end = Ends::well;
  auto ok = call(OpType::barrier);
  EXPECT_ERROR(AbortedError, pg->perform(Operation::barrier(), ok), "a send to rank 1 was given up");
  EXPECT_TRUE(runtime_.has_left_behind());
}

TEST_F(MpiBackendTest, TagsEndWhereMpisDo) {
  const auto pg = backend();
  std::string text = "abc";
  auto ok = call(OpType::send);
  EXPECT_ERROR(ValueError, pg->perform(Operation::send(bytes(text), 1, 93), ok), "tags go up to 92");
  pg->perform(Operation::send(bytes(text), 1, 92), ok);
}

TEST(MpiBackendThreads, CallsDoNotOverlapWhereMpiTakesOneAtATime) {
  MpiDouble library;
  library.level = mpi::ThreadLevel::serialized;
  mpi::Runtime runtime(library);
  runtime.start(Deadline::after(60s));
  std::vector<std::jthread> threads;
  threads.reserve(3);
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      mpi::MpiBackend pg({.runtime = &runtime, .world_ranks = {0, 1}, .group = "g"});
      for (int round = 0; round < 200; ++round) {
        Call call(OpType::barrier, 1, 60s);
        pg.perform(Operation::barrier(), call);
      }
    });
  }
  threads.clear();
  EXPECT_FALSE(library.calls_overlapped);
}

}  // namespace
}  // namespace cohort::test
