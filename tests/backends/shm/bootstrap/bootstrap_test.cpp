// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a group find each other's memory: all of them, or none with the reason.
#include "backends/shm/bootstrap/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "backends/shm/collectives/collective.h"
#include "backends/shm/engines.h"
#include "backends/shm/protocol/agreement.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using shm::Bootstrap;

Bootstrap bootstrap_of(int rank, int size, shm::ExchangeTicket exchange, std::chrono::milliseconds timeout = 60s) {
  return {.name = "shm",
          .group = "tested",
          .rank = rank,
          .size = size,
          .deadline = Deadline::after(timeout),
          .exchange = std::move(exchange)};
}

TEST(ShmBootstrapTest, ThoseWhoTellOthersGiveUpALittleEarlier) {
  EXPECT_TRUE(shm::shortly_before(Deadline::never()).is_never());
  const auto soon = Deadline::after(1s);
  EXPECT_LE(soon.when() - shm::shortly_before(soon).when(), 100ms);
  EXPECT_GT(soon.when() - shm::shortly_before(soon).when(), 50ms);
  const auto late = Deadline::after(1h);
  EXPECT_EQ(late.when() - shm::shortly_before(late).when(), 200ms);
}

TEST(ShmBootstrapTest, ARefusalSaysWhyAndFitsWhereTicketsDo) {
  const auto at = bootstrap_of(1, 2, {});
  EXPECT_ERROR(BackendError, shm::check_ticket(shm::refusal_ticket("no memory"), at), "rank 0: no memory");
  EXPECT_LT(shm::refusal_ticket(std::string(1000, 'x')).size(), shm::ticket_bytes);
  shm::check_ticket("shm name token", at);
}

TEST(ShmBootstrapTest, ThreadsThatDoNotJoinAreNamedOnAllOthers) {
  TicketDesk desk;
  as_threads(2, [&](int rank) {
    EXPECT_ERROR(OperationTimeoutError, shm::bootstrap_threads(bootstrap_of(rank, 4, desk.exchange(), 50ms)),
                 "2 of 4 ranks did not join: ranks 2, 3");
  });
}

TEST(ShmBootstrapTest, ThreadsThatWaitInVainSayWhy) {
  TicketDesk desk;
  auto bootstrap = bootstrap_of(0, 2, desk.exchange());
  bootstrap.failure_check = [] { return Failure{.kind = ErrorKind::peer_lost, .rank = 1, .text = "rank 1 has died"}; };
  EXPECT_ERROR(PeerLostError, shm::bootstrap_threads(bootstrap), "rank 1 has died");
}

TEST(ShmBootstrapTest, TheTicketOfAnotherBackendIsNotTaken) {
  const auto give = [](const std::string& ticket) {
    return bootstrap_of(1, 2, [ticket](std::string_view) { return ticket; });
  };
  EXPECT_ERROR(BackendError, shm::bootstrap_processes(give("thread 0123 1")), "does it use another backend?");
  EXPECT_ERROR(BackendError, shm::bootstrap_threads(give("shm socket 00")), "rank 0 is not a thread of this process");
  EXPECT_ERROR(PeerLostError, shm::bootstrap_processes(give("shm cohort/shm/nobody " + std::string(32, '0'))),
               "connecting to the root of the bootstrap");
}

TEST(ShmBootstrapTest, WhoeverDoesNotKnowTheTokenIsNotLetIn) {
  TicketDesk desk;
  as_threads(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_ERROR(OperationTimeoutError, shm::bootstrap_processes(bootstrap_of(0, 2, desk.exchange(), 300ms)),
                   "1 of 2 ranks did not join: rank 1");
      return;
    }
    const auto forge = [exchange = desk.exchange()](std::string_view ticket) {
      auto given = exchange(ticket);
      given.back() = given.back() == '0' ? '1' : '0';
      return given;
    };
    EXPECT_ERROR(PeerLostError, shm::bootstrap_processes(bootstrap_of(1, 2, forge)),
                 "rank 0 left while the group was being made");
  });
}

TEST(ShmBootstrapTest, TwoProcessesCannotBeTheSameRank) {
  TicketDesk desk;
  as_threads(3, [&](int number) {
    const auto join = [&] { shm::bootstrap_processes(bootstrap_of(std::min(number, 1), 3, desk.exchange())); };
    if (number == 0) {
      EXPECT_ERROR(BackendError, join(), "two processes claim to be rank 1");
    } else {
      EXPECT_THROW(join(), BackendError);
    }
  });
}

TEST(ShmBootstrapTest, ProcessesReachEachOthersMemory) {
  constexpr int size = 3;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  as_processes(size, [&](int rank) {
    using Ticket = std::array<char, shm::ticket_bytes>;
    const auto exchange = [&](std::string_view ticket) {
      Ticket record{};
      if (ticket.empty()) {
        EXPECT_EQ(::read(ends[0], record.data(), record.size()), static_cast<ssize_t>(record.size()));
        return std::string(record.data());
      }
      std::copy(ticket.begin(), ticket.end(), record.begin());
      for (int other = 1; other < size; ++other) {
        EXPECT_EQ(::write(ends[1], record.data(), record.size()), static_cast<ssize_t>(record.size()));
      }
      return std::string(ticket);
    };
    auto parts = shm::bootstrap_processes(bootstrap_of(rank, size, exchange));
    EXPECT_EQ(parts.board.info(rank).pid.load(), ::getpid());
    EXPECT_TRUE(parts.liveness.dead().empty());
    shm::Engine engine(std::move(parts));

    const auto memory = engine.peer_memory().allocate(100'000);
    const auto mine = gift(rank, 0, memory.bytes());
    std::copy(mine.begin(), mine.end(), memory.as<std::byte>().begin());
    Call call(OpType::barrier, 1, 60s);
    shm::Collective collective(engine, Operation::barrier(), call);
    std::array<std::uint64_t, 2> places{*engine.peer_memory().locate(memory.data(), memory.bytes()),
                                        reinterpret_cast<std::uint64_t>(mine.data())};
    std::memcpy(collective.payload(sizeof(places)), places.data(), sizeof(places));
    collective.publish(true);
    collective.await_all();
    for (int each = 0; each < size; ++each) {
      const auto theirs = gift(each, 0, memory.bytes());
      std::memcpy(places.data(), collective.payload_of(each, sizeof(places)), sizeof(places));
      const auto* const mapped = collective.find(each, places[0], theirs.size());
      EXPECT_EQ(std::vector<std::byte>(mapped, mapped + theirs.size()), theirs);
      if (!engine.peer_memory().reads_ordinary() || each == rank) continue;
      std::vector<std::byte> copied(theirs.size());
      collective.read(each, places[1], copied.data(), copied.size());
      EXPECT_EQ(copied, theirs);
    }
    collective.meet();
    return 0;
  });
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace cohort::test
