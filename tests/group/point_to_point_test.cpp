// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "backends/shm/protocol/board.h"
#include "group/arrangements.h"
#include "group/payload.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t long_message = 5 * shm::message_bytes + 13;

class PointToPoint : public OnEveryArrangement {
 protected:
  static int next(const ProcessGroup& pg) { return (pg.rank() + 1) % pg.size(); }
  static int previous(const ProcessGroup& pg) { return (pg.rank() + pg.size() - 1) % pg.size(); }
};

TEST_P(PointToPoint, EveryTypeAndSizeAroundARing) {
  run([](const ProcessGroupPtr& pg) {
    for (const auto dtype : all_dtypes) {
      const auto part = shm::message_bytes / size_of(dtype);
      for (const auto count : {std::size_t{0}, std::size_t{1}, 32 / size_of(dtype), 32 / size_of(dtype) + 1, part,
                               part + 1, 9 * part + 1}) {
        for (const auto place : {Place::ordinary, Place::mixed}) {
          const Memory out(*pg, place, values(dtype, pg->rank(), count), 1);
          const Memory in(*pg, place, count * size_of(dtype), 3);
          const auto sending = pg->send(out.buffer(dtype), next(*pg), {.tag = 3, .async_op = true});
          const auto received = pg->recv(in.buffer(dtype), previous(*pg), {.tag = 3});
          sending.wait();
          EXPECT_TRUE(holds(in, dtype, values(dtype, previous(*pg), count))) << count << ", " << to_string(place);
          EXPECT_EQ(received.source_rank(), previous(*pg));
        }
      }
    }
  });
}

TEST_P(PointToPoint, ToItself) {
  run([](const ProcessGroupPtr& pg) {
    for (const std::size_t count : {1UL, 1000UL, long_message}) {
      const auto mine = values(DType::u8, pg->rank(), count);
      ByteVector got(count);
      const auto sending = pg->send(mine, pg->rank(), {.async_op = true});
      EXPECT_EQ(pg->recv(got, pg->rank()).source_rank(), pg->rank());
      sending.wait();
      EXPECT_EQ(got, mine);
    }
  });
}

TEST_P(PointToPoint, TagsMatchWhateverTheOrder) {
  run([](const ProcessGroupPtr& pg) {
    constexpr int messages = 40;
    const auto size_of_message = [](int tag) {
      return tag % 3 == 0 ? long_message + static_cast<std::size_t>(tag) : static_cast<std::size_t>(tag) * 50;
    };
    std::vector<ByteVector> out;
    std::vector<Work> works;
    out.reserve(messages);
    for (int tag = 0; tag < messages; ++tag) {
      out.emplace_back(size_of_message(tag), static_cast<std::uint8_t>(tag + pg->rank()));
    }
    works.reserve(messages);
    for (int tag = 0; tag < messages; ++tag) {
      works.push_back(pg->send(out[index(tag)], next(*pg), {.tag = tag, .async_op = true}));
    }
    for (int tag = messages - 1; tag >= 0; --tag) {
      ByteVector got(size_of_message(tag));
      pg->recv(got, previous(*pg), {.tag = tag});
      EXPECT_EQ(got, ByteVector(got.size(), static_cast<std::uint8_t>(tag + previous(*pg)))) << tag;
    }
    for (const auto& each : works) each.wait();
  });
}

TEST_P(PointToPoint, OneTagKeepsTheOrder) {
  run([](const ProcessGroupPtr& pg) {
    // Short and long messages alternate: a long one must not be overtaken.
    constexpr std::size_t messages = 30;
    std::vector<ByteVector> out;
    std::vector<ByteVector> in;
    for (std::size_t i = 0; i < messages; ++i) {
      const auto size = i % 2 == 0 ? long_message : 10;
      out.emplace_back(size, static_cast<std::uint8_t>(i));
      in.emplace_back(size, 255);
    }
    std::vector<Work> works;
    works.reserve(2 * messages);
    for (auto& each : out) works.push_back(pg->send(each, next(*pg), {.async_op = true}));
    for (auto& each : in) works.push_back(pg->recv(each, previous(*pg), {.async_op = true}));
    for (const auto& each : works) each.wait();
    EXPECT_EQ(in, out);
  });
}

TEST_P(PointToPoint, AnySourceSaysWhoItWas) {
  run([](const ProcessGroupPtr& pg) {
    for (const std::size_t count : {1UL, long_message}) {
      std::vector<Work> works;
      const ByteVector mine(count, static_cast<std::uint8_t>(pg->rank()));
      if (pg->rank() != 0) {
        works.push_back(pg->send(mine, 0, {.tag = 9, .async_op = true}));
      } else {
        std::vector<int> seen;
        for (int i = 1; i < pg->size(); ++i) {
          ByteVector got(count, 255);
          // Half of the calls are blocking.
          const auto work = pg->recv_any_source(got, {.tag = 9, .async_op = i % 2 == 0});
          work.wait();
          seen.push_back(work.source_rank());
          EXPECT_EQ(got, ByteVector(count, static_cast<std::uint8_t>(work.source_rank())));
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int> others(index(pg->size() - 1));
        std::iota(others.begin(), others.end(), 1);
        EXPECT_EQ(seen, others);
      }
      for (const auto& each : works) each.wait();
      pg->barrier();
    }
  });
}

TEST_P(PointToPoint, AThousandOutstandingWaitedForInRandomOrder) {
  run([](const ProcessGroupPtr& pg) {
    constexpr int messages = 1000;
    std::vector<int> out(messages);
    std::vector<int> in(messages, -1);
    std::vector<Work> works;
    for (int i = 0; i < messages; ++i) {
      out[index(i)] = i * 10 + pg->rank();
      works.push_back(pg->send(std::span(&out[index(i)], 1), next(*pg), {.tag = i % 7, .async_op = true}));
      works.push_back(pg->recv(std::span(&in[index(i)], 1), previous(*pg), {.tag = i % 7, .async_op = true}));
    }
    std::shuffle(works.begin(), works.end(), std::mt19937(static_cast<unsigned>(pg->rank())));
    for (const auto& each : works) each.wait();
    for (int i = 0; i < messages; ++i) EXPECT_EQ(in[index(i)], i * 10 + previous(*pg));
  });
}

TEST_P(PointToPoint, BlockingAndQueuedCallsMayBeMixed) {
  run([](const ProcessGroupPtr& pg) {
    constexpr std::size_t messages = 200;
    constexpr int tags = 3;
    // Long messages are never sent with a blocking call, because their receiver may be waiting for a later message.
    const auto is_long = [](std::size_t i) { return i % 13 == 12; };
    const auto content = [&](int from, std::size_t i) {
      return ByteVector(is_long(i) ? long_message : i % 60, static_cast<std::uint8_t>(i + index(from) * 7));
    };
    // Messages with the same tag are received in order, the tags in any order.
    std::vector<std::size_t> order(messages);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(static_cast<unsigned>(pg->rank()));
    // On hybrid, a receive from any source takes only messages that no other receive waits for, so the two are not
    // mixed there.
    const bool from_any = !backend_under_test().ends_with("hybrid");
    for (std::size_t i = 0; i + tags <= messages; i += tags) {
      std::shuffle(order.begin() + static_cast<std::ptrdiff_t>(i),
                   order.begin() + static_cast<std::ptrdiff_t>(i + tags), random);
    }
    for (int from = 0; from < pg->size(); ++from) {
      std::vector<ByteVector> data(messages * index(pg->size()));
      std::vector<ByteVector> got(messages);
      // Declared last: after an error, operations in progress are waited for before their memory is freed.
      std::vector<Work> works;
      if (pg->rank() == from) {
        for (std::size_t i = 0; i < messages; ++i) {
          for (int to = 0; to < pg->size(); ++to) {
            auto& mine = data[i * index(pg->size()) + index(to)] = content(from, i);
            const bool is_async = to == from || is_long(i) || random() % 2 == 0;
            works.push_back(pg->send(mine, to, {.tag = static_cast<int>(i) % tags, .async_op = is_async}));
          }
        }
      }
      for (const auto i : order) {
        got[i].assign(content(from, i).size(), 255);
        const RecvOptions how{.tag = static_cast<int>(i) % tags, .async_op = random() % 2 == 0};
        works.push_back(random() % 3 == 0 && from_any ? pg->recv_any_source(got[i], how) : pg->recv(got[i], from, how));
      }
      for (const auto& each : works) each.wait();
      for (std::size_t i = 0; i < messages; ++i) EXPECT_EQ(got[i], content(from, i)) << i << " from " << from;
      pg->barrier();
    }
  });
}

TEST_P(PointToPoint, FromSeveralThreadsOfARank) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<std::jthread> threads;
    threads.reserve(3);
    for (int tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&pg, tag] {
        for (int i = 0; i < 40; ++i) {
          const auto size = i % 5 == 4 ? long_message : index(i);
          const ByteVector out(size, static_cast<std::uint8_t>(pg->rank() * 31 + tag * 7 + i));
          ByteVector in(size, 255);
          const auto sending = pg->send(out, next(*pg), {.tag = tag, .async_op = true});
          pg->recv(in, previous(*pg), {.tag = tag});
          sending.wait();
          EXPECT_EQ(in, ByteVector(size, static_cast<std::uint8_t>(previous(*pg) * 31 + tag * 7 + i)));
        }
      });
    }
  });
}

TEST_P(PointToPoint, LargeMessagesBothWaysAtOnce) {
  run([](const ProcessGroupPtr& pg) {
    // Every rank sends to every rank and calls blocking receives first, so that nothing progresses unless both
    // directions do.
    constexpr std::size_t bytes = 600'000;
    const auto mine = values(DType::u8, pg->rank(), bytes);
    std::vector<Work> works;
    works.reserve(index(pg->size()));
    for (int peer = 0; peer < pg->size(); ++peer) works.push_back(pg->send(mine, peer, {.async_op = true}));
    for (int peer = 0; peer < pg->size(); ++peer) {
      ByteVector got(bytes);
      pg->recv(got, peer);
      EXPECT_EQ(got, values(DType::u8, peer, bytes));
    }
    for (const auto& each : works) each.wait();
  });
}

TEST_P(PointToPoint, IsIndependentOfABlockedCollective) {
  run([](const ProcessGroupPtr& pg) {
    // Rank 0 joins the all-reduce only after it has received a message from every other rank; they are in it already.
    std::vector<float> x(10'000, 1);
    if (pg->rank() == 0) {
      for (int peer = 1; peer < pg->size(); ++peer) {
        ByteVector got(long_message);
        pg->recv(got, peer);
        pg->send(got, peer);
      }
      pg->all_reduce(x);
    } else {
      const auto reducing = pg->all_reduce(x, {.async_op = true});
      ByteVector message(long_message, 1);
      pg->send(message, 0);
      pg->recv(message, 0);
      reducing.wait();
    }
    EXPECT_EQ(x, std::vector<float>(x.size(), static_cast<float>(pg->size())));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, PointToPoint, every_arrangement(), arrangement_name);

class PointToPointErrors : public OnEveryArrangement {
 protected:
  /// Whether the sender gets an error if its receiver expected another size.
  static bool tells_the_sender() {
    const auto& ranks = GetParam();
    const bool share_a_host = ranks.hosts / ranks.size == 0;  // ranks 0 and 1
    // Launched ranks 0 and 1 share a host too.
    return is_over_shared_memory() && share_a_host;
  }
};

/// When the receive is issued: before the message is sent, at any time, or after the message has arrived.
enum class Asks { first, sometime, late };

TEST_P(PointToPointErrors, AnotherSizeIsAMismatchAndTheGroupGoesOn) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<int> word;
    const auto check = [&](std::size_t sent, std::size_t expected, Asks asks) {
      SCOPED_TRACE(std::to_string(sent) + " bytes for " + std::to_string(expected));
      const ByteVector out(sent, 1);
      ByteVector in(expected, 7);
      if (pg->rank() == 1) {
        const auto send = [&] {
          const auto sending = pg->send(out, 0, {.tag = 1, .async_op = true});
          if (asks == Asks::late) pg->send(word, 0, {.tag = 2});
          sending.wait();
        };
        if (asks == Asks::first) pg->recv(word, 0, {.tag = 2});
        // The send of a short message has completed by the time the receiver sees its size.
        if (sent > shm::message_bytes && tells_the_sender()) {
          EXPECT_ERROR(MismatchError, send(), "rank 0");
        } else {
          send();
        }
      } else if (pg->rank() == 0) {
        const auto receive = [&] {
          if (asks == Asks::late) pg->recv(word, 1, {.tag = 2});
          const auto receiving = pg->recv(in, 1, {.tag = 1, .async_op = asks == Asks::first});
          if (asks == Asks::first) pg->send(word, 1, {.tag = 2});
          receiving.wait();
        };
        EXPECT_THAT(message_of<MismatchError>(receive),
                    ::testing::AllOf(::testing::HasSubstr("rank 1 sent " + std::to_string(sent) + " bytes"),
                                     ::testing::HasSubstr("expects " + std::to_string(expected))));
        EXPECT_EQ(in, ByteVector(expected, 7));
      }
      expect_works(*pg);
    };
    for (const auto asks : {Asks::first, Asks::sometime, Asks::late}) {
      check(4, 8, asks);
      check(8, 4, asks);
      check(0, 1, asks);
      check(shm::message_bytes, 4, asks);
      check(4, long_message, asks);
      if (asks == Asks::late) continue;
      check(long_message, long_message - 1, asks);
      check(long_message, 4, asks);
    }
    // The next message with the same tag is not affected.
    ByteVector x(long_message, pg->rank() == 0 ? 0 : 3);
    if (pg->rank() == 1) pg->send(x, 0, {.tag = 1});
    if (pg->rank() == 0) pg->recv(x, 1, {.tag = 1});
    EXPECT_EQ(x, ByteVector(long_message, 3));
  });
}

TEST_P(PointToPointErrors, AnotherTypeIsAMismatchAndTheGroupGoesOn) {
  if (backend_under_test() == "mpi") GTEST_SKIP() << "an MPI message does not say what type its bytes are";
  run([](const ProcessGroupPtr& pg) {
    for (const std::size_t count : {1UL, 100UL, long_message / sizeof(float)}) {
      for (const bool any_source : {false, true}) {
        SCOPED_TRACE(std::to_string(count) + " elements");
        const std::vector<float> out(count, 1);
        std::vector<std::int32_t> in(count, 7);
        if (pg->rank() == 1) {
          if (count * sizeof(float) > shm::message_bytes && tells_the_sender()) {
            EXPECT_ERROR(MismatchError, pg->send(out, 0, {.tag = 1}), "rank 0");
          } else {
            pg->send(out, 0, {.tag = 1});
          }
        } else if (pg->rank() == 0) {
          const auto receive = [&] { any_source ? pg->recv_any_source(in, {.tag = 1}) : pg->recv(in, 1, {.tag = 1}); };
          EXPECT_THAT(message_of<MismatchError>(receive),
                      ::testing::AllOf(::testing::HasSubstr("rank 1 sent"), ::testing::HasSubstr("f32"),
                                       ::testing::HasSubstr("i32")));
          EXPECT_EQ(in, std::vector<std::int32_t>(count, 7));
        }
        expect_works(*pg);
      }
    }
  });
}

TEST_P(PointToPointErrors, ALongMessageRefusedLateIsKnownToItsSenderAtOnce) {
  if (!tells_the_sender()) GTEST_SKIP() << "this backend tells the receiver only";
  run([](const ProcessGroupPtr& pg) {
    // The receiver issues no further point-to-point operations after it has refused the message.
    std::vector<int> word;
    const ByteVector out(long_message, 1);
    ByteVector in(long_message - 1);
    if (pg->rank() == 1) {
      const auto sending = pg->send(out, 0, {.tag = 1, .async_op = true, .timeout = 1s});
      pg->send(word, 0, {.tag = 2});
      EXPECT_ERROR(MismatchError, sending.wait(), "rank 0");
    } else if (pg->rank() == 0) {
      pg->recv(word, 1, {.tag = 2});
      EXPECT_ERROR(MismatchError, pg->recv(in, 1, {.tag = 1}), "rank 1");
    }
    expect_works(*pg);
  });
}

TEST_P(PointToPointErrors, TheErrorOfAQueuedCallComesFromItsWork) {
  run([](const ProcessGroupPtr& pg) {
    // Receiving the second message also takes the first one out of the mailbox, so that its size is known when it is
    // received.
    const std::vector<int> out(2, 1);
    std::vector<int> in(2);
    const auto first = pg->send(out, pg->rank(), {.tag = 1, .async_op = true});
    const auto second = pg->send(out, pg->rank(), {.tag = 2, .async_op = true});
    pg->recv(in, pg->rank(), {.tag = 2});
    std::vector<int> wrong(3);
    Work receiving;
    EXPECT_NO_THROW(receiving = pg->recv(wrong, pg->rank(), {.tag = 1, .async_op = true}));
    EXPECT_TRUE(receiving.is_completed() && !receiving.is_success());
    for (int i = 0; i < 2; ++i) EXPECT_THROW(receiving.wait(), MismatchError);
    first.wait();
    second.wait();
    expect_works(*pg);
  });
}

TEST_P(PointToPointErrors, AReceiveThatTimesOutTakesNothingWithIt) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<int> x(3, -1);
    if (pg->rank() == 0) {
      EXPECT_THAT(message_of<OperationTimeoutError>([&] { pg->recv(x, 1, {.timeout = 20ms}); }),
                  ::testing::HasSubstr("rank 1"));
      const auto work = pg->recv(x, 1, {.async_op = true, .timeout = 20ms});
      EXPECT_THROW(work.wait(), OperationTimeoutError);
    }
    pg->barrier();
    if (pg->rank() == 1) pg->send(std::vector<int>(3, 5), 0);
    if (pg->rank() == 0) pg->recv(x, 1);
    EXPECT_EQ(x, std::vector<int>(3, pg->rank() == 0 ? 5 : -1));
    expect_works(*pg);
  });
}

TEST_P(PointToPointErrors, ALongMessageThatWasGivenUpIsNeverReceived) {
  if (!tells_the_sender()) GTEST_SKIP() << "messages between these ranks are copied by their sender";
  run([](const ProcessGroupPtr& pg) {
    for (const auto place : places()) {
      const Memory memory(*pg, place, long_message);
      std::memset(memory.data(), 1, long_message);
      ByteVector got(long_message, 7);
      if (pg->rank() == 0) {
        EXPECT_THROW(pg->send(memory.buffer(DType::u8), 1, {.tag = 1, .timeout = 20ms}), OperationTimeoutError);
        std::memset(memory.data(), 2, long_message);  // the memory is used for something else
      }
      pg->barrier();
      if (pg->rank() == 1) {
        EXPECT_ERROR(BackendError, pg->recv(got, 0, {.tag = 1}), "gave up on sending it");
        pg->send(got, 0, {.tag = 2});
      }
      // The sender is asked for the message while it waits for another one.
      if (pg->rank() == 0) pg->recv(got, 1, {.tag = 2});
      pg->barrier();
    }
    expect_works(*pg);
  });
}

TEST_P(PointToPointErrors, OnlyReceivesHaveASource) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<int> x(3);
    EXPECT_THROW(static_cast<void>(pg->all_reduce(x).source_rank()), Error);
    const auto sending = pg->send(x, pg->rank(), {.async_op = true});
    pg->recv(x, pg->rank());
    sending.wait();
    EXPECT_THROW(static_cast<void>(sending.source_rank()), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, PointToPointErrors, arrangements_of_several(), arrangement_name);

}  // namespace
}  // namespace cohort::test
