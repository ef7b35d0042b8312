// SPDX-License-Identifier: BSD-3-Clause
// Whoever offers, from wherever it lies, and in whichever way it is moved: each rank gets what was offered to it.
#include "backends/shm/collectives/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "backends/shm/engines.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using shm::Engine;
using shm::Exchange;

/// The memory of an exchange on one rank: with one lane, what it gives to all; otherwise, what it gives to each.
class Lanes {
 public:
  using Sizes = std::function<std::size_t(int from, int to)>;

  Lanes(Engine& engine, int lanes, const Sizes& sizes, bool is_in_group_memory) : rank_(engine.rank()) {
    for (int to = 0; to < lanes; ++to) {
      given_.push_back(gift(rank_, to, sizes(rank_, to)));
      offers_.emplace_back(given_.back());
      if (!is_in_group_memory) continue;
      shared_.push_back(engine.peer_memory().allocate(std::max<std::size_t>(1, given_.back().size())));
      const auto at = shared_.back().as<std::byte>().first(given_.back().size());
      std::copy(given_.back().begin(), given_.back().end(), at.begin());
      offers_.back() = at;
    }
    for (int from = 0; from < engine.size(); ++from) {
      const int lane = lanes == 1 ? 0 : rank_;
      expected_.push_back(from == rank_ ? std::vector<std::byte>() : gift(from, lane, sizes(from, lane)));
      got_.emplace_back(expected_.back().size());
    }
    takes_.assign(got_.begin(), got_.end());
  }

  std::span<const ConstBytes> offers() const { return offers_; }
  std::span<const Bytes> takes() const { return takes_; }
  bool have_arrived() const { return got_ == expected_; }

 private:
  int rank_;
  std::vector<std::vector<std::byte>> given_;
  std::vector<GroupMemory> shared_;
  std::vector<ConstBytes> offers_;
  std::vector<std::vector<std::byte>> expected_;
  std::vector<std::vector<std::byte>> got_;
  std::vector<Bytes> takes_;
};

void run_exchange(Engine& engine, std::span<const ConstBytes> offers, int lanes, std::span<const Bytes> takes,
                  int source = Exchange::all) {
  Call call(OpType::barrier, 1, 60s);
  shm::Collective collective(engine, Operation::barrier(), call);
  Exchange(engine, collective, offers, static_cast<std::size_t>(lanes), takes, source).run();
}

/// Each rank's memory lies in memory of the group or not, as `is_in_group_memory(rank)` says.
void expect_arrival(int ranks, int lanes, const std::function<bool(int)>& is_in_group_memory) {
  with_engines(ranks, [&](Engine& engine) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{5000}, 70 * shm::kib, 3 * shm::mib}) {
      const auto sizes = [&](int from, int to) { return most / static_cast<std::size_t>(1 + (from + 2 * to) % 3); };
      const Lanes memory(engine, lanes, sizes, is_in_group_memory(engine.rank()));
      run_exchange(engine, memory.offers(), lanes, memory.takes());
      EXPECT_TRUE(memory.have_arrived()) << most << " bytes, rank " << engine.rank();
    }
  });
}

TEST(ShmExchangeTest, EachRankGivesOnePieceToAll) {
  expect_arrival(3, 1, [](int) { return false; });
  expect_arrival(3, 1, [](int) { return true; });
}

TEST(ShmExchangeTest, EachRankGivesAPieceToEach) {
  expect_arrival(3, 3, [](int) { return false; });
  expect_arrival(3, 3, [](int) { return true; });
}

TEST(ShmExchangeTest, EachPieceIsTakenFromWhereItLies) {
  expect_arrival(4, 1, [](int rank) { return rank % 2 == 0; });
  expect_arrival(4, 4, [](int rank) { return rank == 3; });
}

TEST(ShmExchangeTest, OneRankGivesToAll) {
  constexpr int source = 1;
  with_engines(3, [](Engine& engine) {
    for (const std::size_t bytes : {20 * shm::kib, 2 * shm::mib + 5}) {
      const auto given = gift(source, 0, bytes);
      std::vector<std::byte> got(engine.rank() == source ? 0 : bytes);
      const ConstBytes offer(given);
      run_exchange(engine, {&offer, 1}, 1, shm::OnlyFrom(3, source, got).get(), source);
      if (engine.rank() != source) {
        EXPECT_EQ(got, given);
      }
    }
  });
}

TEST(ShmExchangeTest, AllRanksAreToldOfAPieceOfTheWrongSize) {
  with_engines(2, [](Engine& engine) {
    const auto given = gift(engine.rank(), 0, 5000);
    std::vector<std::byte> got(engine.rank() == 1 ? 4000 : 5000);
    const ConstBytes offer(given);
    const shm::OnlyFrom takes(2, 1 - engine.rank(), got);
    EXPECT_ERROR(MismatchError, run_exchange(engine, {&offer, 1}, 1, takes.get()),
                 "rank 0 sends 5000 bytes to rank 1, which expects 4000");
  });
}

/// Threads read each other's ordinary memory here, as the kernel lets processes do.
class ReadableMemory final : public shm::PeerMemory {
 public:
  explicit ReadableMemory(std::atomic<int>& reads) : reads_(reads) {}

  std::optional<std::uint64_t> locate(const void* /*data*/, std::size_t bytes) const override {
    return bytes == 0 ? std::optional<std::uint64_t>(0) : std::nullopt;
  }
  std::byte* find(int /*rank*/, std::uint64_t /*location*/, std::size_t /*bytes*/) const override { return nullptr; }
  bool reads_ordinary() const override { return true; }
  void read(int /*rank*/, std::uint64_t address, void* to, std::size_t bytes) const override {
    std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
    ++reads_;
  }
  bool is_available() const override { return false; }
  GroupMemory allocate(std::size_t /*bytes*/) override { return {}; }
  void abandon(const void* /*data*/) override {}

 private:
  std::atomic<int>& reads_;
};

TEST(ShmExchangeTest, OrdinaryMemoryIsReadWhereThatIsPossible) {
  std::atomic<int> reads = 0;
  with_engines(
      3,
      [](Engine& engine) {
        for (int round = 0; round < 8; ++round) {  // the first operations of a size use all ways in turn
          const auto sizes = [](int from, int to) { return 40'000 + static_cast<std::size_t>(from + to) * 1000; };
          const Lanes memory(engine, 3, sizes, false);
          run_exchange(engine, memory.offers(), 3, memory.takes());
          EXPECT_TRUE(memory.have_arrived()) << round;
        }
      },
      [&](shm::EngineParts& parts) { parts.peer_memory = std::make_unique<ReadableMemory>(reads); });
  EXPECT_GE(reads, 2 * 3 * 2) << "twice, all ranks have read a piece of each of the others";
}

}  // namespace
}  // namespace cohort::test
