// SPDX-License-Identifier: BSD-3-Clause
// A worked example: a one-slot mailbox, written once for real atomics and for those of the explorer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "model/model_atomics.h"

namespace cohort::model::test {
namespace {

using ::testing::HasSubstr;

struct StdAtomics {
  template <class T>
  using Atomic = std::atomic<T>;
  template <class T>
  using Plain = T;

  static void pause() { std::this_thread::yield(); }
  template <class Deadline>
  static void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, const Deadline&) {
    word.wait(expected);
  }
  static void futex_wake(Atomic<std::uint32_t>& word) { word.notify_all(); }
};

/// The mistakes that can be made.
enum class Mistake {
  none,
  relaxed_store,       ///< nothing orders the payload before the flag
  flag_first,          ///< the payload is written only after the flag announces it
  nobody_woken,        ///< the thread that changes the flag does not look for sleepers
  acquire_and_release  ///< flag and sleepers can both be read too early, where sleeper and waker cross
};

template <class Atomics, Mistake mistake = Mistake::none>
class Mailbox {
 public:
  static constexpr std::uint32_t empty = 0;
  static constexpr std::uint32_t full = 1;

  void put(int value) {
    await(empty);
    if constexpr (mistake == Mistake::flag_first) {
      announce(full);
      payload_ = value;
    } else {
      payload_ = value;
      announce(full);
    }
  }

  int take() {
    await(full);
    const int value = payload_;
    announce(empty);
    return value;
  }

  void name_parts()
    requires std::same_as<Atomics, ModelAtomics>
  {
    name(state_, "state");
    name(sleepers_, "sleepers");
    name(payload_, "payload");
  }

 private:
  static constexpr bool weak = mistake == Mistake::acquire_and_release;
  // Sleeper and waker each store one word and load the other; seq_cst lets at least one see the other's store.
  static constexpr auto crossing_store = weak ? std::memory_order_release : std::memory_order_seq_cst;
  static constexpr auto crossing_load = weak ? std::memory_order_acquire : std::memory_order_seq_cst;

  void await(std::uint32_t wanted) {
    if (state_.load(std::memory_order_acquire) == wanted) return;
    Atomics::pause();
    sleepers_.fetch_add(1, crossing_store);
    for (;;) {
      const auto seen = state_.load(crossing_load);
      if (seen == wanted) break;
      Atomics::futex_wait(state_, seen, std::chrono::steady_clock::time_point::max());
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  void announce(std::uint32_t state) {
    state_.store(state, mistake == Mistake::relaxed_store ? std::memory_order_relaxed : crossing_store);
    if constexpr (mistake != Mistake::nobody_woken) {
      if (sleepers_.load(crossing_load) != 0) Atomics::futex_wake(state_);
    }
  }

  typename Atomics::template Atomic<std::uint32_t> state_{empty};
  typename Atomics::template Atomic<std::uint32_t> sleepers_{0};
  typename Atomics::template Plain<int> payload_{0};
};

template <Mistake mistake>
Report explore_mailbox(const Options& options) {
  return explore(options, [](Program& program) {
    constexpr int letters = 3;
    auto& mailbox = program.make<Mailbox<ModelAtomics, mistake>>();
    mailbox.name_parts();
    program.thread("sender", [&mailbox] {
      for (int letter = 1; letter <= letters; ++letter) mailbox.put(letter);
    });
    program.thread("receiver", [&mailbox] {
      for (int letter = 1; letter <= letters; ++letter) require(mailbox.take() == letter, "letters come in order");
    });
  });
}

TEST(MailboxTest, TheRightOneHoldsInTenThousandInterleavings) {
  const auto report = explore_mailbox<Mistake::none>({.executions = 15'000});
  EXPECT_FALSE(report.failure) << report;
  EXPECT_GE(report.distinct, 10'000U);
}

TEST(MailboxTest, ARelaxedStoreIsCaught) {
  EXPECT_THAT(failure(explore_mailbox<Mistake::relaxed_store>({})), HasSubstr("data race on payload"));
}

TEST(MailboxTest, AFlagSetBeforeThePayloadIsCaught) {
  EXPECT_THAT(failure(explore_mailbox<Mistake::flag_first>({})), HasSubstr("data race on payload"));
}

TEST(MailboxTest, ASleeperNobodyWakesIsCaught) {
  EXPECT_THAT(failure(explore_mailbox<Mistake::nobody_woken>({})), HasSubstr("sleeps on state"));
}

TEST(MailboxTest, SleeperAndWakerThatMissEachOtherAreCaught) {
  EXPECT_THAT(failure(explore_mailbox<Mistake::acquire_and_release>({})), HasSubstr("sleeps on state"));
}

TEST(MailboxTest, TheSameCodeRunsOnRealAtomics) {
  constexpr int letters = 10'000;
  Mailbox<StdAtomics> mailbox;
  std::int64_t sum = 0;
  {
    const std::jthread receiver([&] {
      for (int i = 0; i < letters; ++i) sum += mailbox.take();
    });
    for (int letter = 1; letter <= letters; ++letter) mailbox.put(letter);
  }
  EXPECT_EQ(sum, std::int64_t{letters} * (letters + 1) / 2);
}

}  // namespace
}  // namespace cohort::model::test
