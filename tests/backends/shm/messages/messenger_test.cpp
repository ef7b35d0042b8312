// SPDX-License-Identifier: BSD-3-Clause
// Messages: short and long ones, expected or not, and what happens to those that are given up.
#include "backends/shm/messages/messenger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <latch>
#include <memory>
#include <thread>

#include "backends/shm/engines.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using shm::Engine;
using shm::Messenger;

constexpr std::size_t long_bytes = 5 * shm::message_bytes + 13;

/// One rank that sends and receives.
struct Correspondent {
  Engine& engine;
  Messenger messenger{engine};

  void send(ConstBytes data, int peer, int tag = 0, std::chrono::milliseconds timeout = 60s) {
    Call call(OpType::send, 1, timeout);
    messenger.send(Operation::send(data, peer, tag), call);
  }
  int recv(Bytes data, int peer, int tag = 0, std::chrono::milliseconds timeout = 60s) {
    const auto op = Operation::recv(data, peer, tag);
    Call call(op.type, 1, timeout);
    return messenger.recv(op, call);
  }
  std::unique_ptr<Transfer> start_send(ConstBytes data, int peer, int tag = 0) {
    Call call(OpType::send, 1, Deadline::after(60s));
    return messenger.start_send(Operation::send(data, peer, tag), call);
  }
  std::unique_ptr<Transfer> start_recv(Bytes data, int peer, int tag = 0) {
    const auto op = Operation::recv(data, peer, tag);
    Call call(op.type, 1, Deadline::after(60s));
    return messenger.start_recv(op, call);
  }
};

void with_correspondents(int ranks, const std::function<void(Correspondent&)>& body) {
  with_engines(ranks, [&](Engine& engine) {
    Correspondent rank{.engine = engine};
    body(rank);
  });
}

void finish(Transfer& transfer) {
  while (!transfer.advance()) {
    transfer.check();
    std::this_thread::yield();
  }
}

TEST(ShmMessengerTest, MessagesOfEverySizeArrive) {
  with_correspondents(2, [](Correspondent& me) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{32}, shm::message_bytes, long_bytes, 5 * shm::mib}) {
      const auto message = gift(0, 1, bytes);
      if (me.engine.rank() == 0) {
        me.send(message, 1);
      } else {
        std::vector<std::byte> got(bytes);
        EXPECT_EQ(me.recv(got, 0), 0);
        EXPECT_EQ(got, message) << bytes;
      }
    }
  });
}

TEST(ShmMessengerTest, AMessageInMemoryOfTheGroupIsCopiedOnce) {
  with_correspondents(2, [](Correspondent& me) {
    const auto message = gift(0, 1, long_bytes);
    if (me.engine.rank() == 0) {
      const auto memory = me.engine.peer_memory().allocate(long_bytes);
      std::copy(message.begin(), message.end(), memory.as<std::byte>().begin());
      me.send(memory.as<std::byte>(), 1);
    } else {
      std::vector<std::byte> got(long_bytes);
      me.recv(got, 0);
      EXPECT_EQ(got, message);
    }
  });
}

TEST(ShmMessengerTest, UnexpectedMessagesWaitForTheirReceive) {
  with_correspondents(2, [](Correspondent& me) {
    constexpr std::array<std::size_t, 3> sizes{100, long_bytes, 7};
    if (me.engine.rank() == 0) {
      std::vector<std::vector<std::byte>> messages;
      std::vector<std::unique_ptr<Transfer>> transfers;
      for (int tag = 0; tag < 3; ++tag) {
        messages.push_back(gift(0, tag, sizes[static_cast<std::size_t>(tag)]));
        transfers.push_back(me.start_send(messages.back(), 1, tag));
      }
      for (const auto& each : transfers) finish(*each);
    } else {
      for (int tag = 2; tag >= 0; --tag) {
        const auto size = sizes[static_cast<std::size_t>(tag)];
        std::vector<std::byte> got(size);
        EXPECT_EQ(me.recv(got, 0, tag), 0);
        EXPECT_EQ(got, gift(0, tag, size)) << tag;
      }
    }
  });
}

TEST(ShmMessengerTest, AReceiveFromAnyRankSaysFromWhich) {
  with_correspondents(4, [](Correspondent& me) {
    if (me.engine.rank() != 0) {
      me.send(gift(me.engine.rank(), 0, long_bytes), 0);
      return;
    }
    std::vector<int> sources;
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> got(long_bytes);
      sources.push_back(me.recv(got, Backend::any_source));
      EXPECT_EQ(got, gift(sources.back(), 0, long_bytes));
    }
    EXPECT_THAT(sources, ::testing::UnorderedElementsAre(1, 2, 3));
  });
}

TEST(ShmMessengerTest, AMessageOfTheWrongSizeIsRefused) {
  with_correspondents(2, [](Correspondent& me) {
    std::vector<std::byte> data(long_bytes);
    if (me.engine.rank() == 0) {
      EXPECT_ERROR(MismatchError, me.send(data, 1), "rank 1 expects another size or type than the 81933 bytes of u8");
      me.send(data, 1);
    } else {
      data.pop_back();
      EXPECT_ERROR(MismatchError, me.recv(data, 0),
                   "rank 0 sent 81933 bytes of u8 where rank 1 expects 81932 bytes of u8");
      data.push_back({});
      me.recv(data, 0);
    }
  });
}

TEST(ShmMessengerTest, AMissedDeadlineEndsThatMessageOnly) {
  std::latch has_given_up{2};
  with_correspondents(2, [&](Correspondent& me) {
    std::vector<std::byte> data(long_bytes);
    if (me.engine.rank() == 0) {
      EXPECT_ERROR(OperationTimeoutError, me.recv(data, 1, 0, 40ms),
                   "rank 0 gave up on receiving from rank 1 after 40 ms: rank 1 has not sent it");
      EXPECT_ERROR(OperationTimeoutError, me.recv(data, Backend::any_source, 0, 40ms),
                   "rank 0 gave up on receiving from any rank after 40 ms: any rank has not sent it");
      has_given_up.arrive_and_wait();
      me.recv(data, 1, 2);
      EXPECT_EQ(data, gift(1, 0, long_bytes));
    } else {
      EXPECT_ERROR(OperationTimeoutError, me.send(data, 0, 1, 40ms),
                   "rank 1 gave up on sending to rank 0 after 40 ms: rank 0 has not received it");
      has_given_up.arrive_and_wait();
      me.send(gift(1, 0, long_bytes), 0, 2);
    }
  });
}

TEST(ShmMessengerTest, AReceiveLearnsThatItsMessageWasWithdrawn) {
  std::latch is_withdrawn{2};
  with_correspondents(2, [&](Correspondent& me) {
    std::vector<std::byte> data(long_bytes);
    if (me.engine.rank() == 0) {
      me.start_send(data, 1).reset();
      is_withdrawn.arrive_and_wait();
      me.recv(data, 1);  // advances everything else, too
    } else {
      is_withdrawn.arrive_and_wait();
      EXPECT_ERROR(BackendError, me.recv(data, 0), "rank 0 gave up on sending it");
      me.send(data, 0);
    }
  });
}

TEST(ShmMessengerTest, WaitingForARankThatHasLeftIsInVain) {
  with_correspondents(2, [](Correspondent& me) {
    if (me.engine.rank() == 1) return;
    std::byte data{};
    EXPECT_ERROR(PeerLostError, finish(*me.start_recv({&data, 1}, 1)), "rank 1 has left the group");
    EXPECT_ERROR(PeerLostError, me.recv({&data, 1}, 1), "rank 1 has left the group");
  });
}

TEST(ShmMessengerTest, ATransferKnowsWhetherItHasBegunAndItsSource) {
  std::latch is_sent{2};
  with_correspondents(2, [&](Correspondent& me) {
    std::byte data{7};
    if (me.engine.rank() == 1) {
      me.send({&data, 1}, 0);
      return is_sent.arrive_and_wait();
    }
    const auto other = me.start_recv({&data, 1}, 1, 5);
    is_sent.arrive_and_wait();
    std::byte got{};
    const auto transfer = me.start_recv({&got, 1}, Backend::any_source);
    finish(*transfer);
    EXPECT_TRUE(transfer->has_begun());
    EXPECT_EQ(transfer->source(), 1);
    EXPECT_EQ(got, data);
    EXPECT_FALSE(other->has_begun());
  });
}

}  // namespace
}  // namespace cohort::test
