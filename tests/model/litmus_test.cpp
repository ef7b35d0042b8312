// SPDX-License-Identifier: BSD-3-Clause
// The classic litmus tests: small programs whose possible outcomes are known. Each is explored exhaustively, and the
// outcomes are compared with those that C++20 allows, so that the explorer shows neither too many nor (apart from what
// explorer.h states) too few.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "model/explorer.h"

namespace cohort::model::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using enum std::memory_order;

/// What the threads of a litmus test share, and the registers they read into.
struct Shared {
  Atomic<int> x{0};
  Atomic<int> y{0};
  Plain<int> data{0};
  std::array<int, 4> r{};
};
using Body = std::function<void(Shared&)>;

/// The values of r, written one after another.
using Outcomes = std::set<std::string>;

Report explore_all(const std::vector<Body>& bodies, const std::function<void(const Shared&)>& after = {}) {
  return explore({.search = Search::exhaustive, .executions = 1'000'000}, [&](Program& program) {
    auto& shared = program.make<Shared>();
    name(shared.x, "x");
    name(shared.y, "y");
    name(shared.data, "data");
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      program.thread("T" + std::to_string(i + 1), [&shared, &body = bodies[i]] { body(shared); });
    }
    if (after) program.after([&] { after(shared); });
  });
}

/// All outcomes for the first `registers` registers.
Outcomes outcomes(std::size_t registers, const std::vector<Body>& bodies) {
  Outcomes seen;
  const auto report = explore_all(bodies, [&](const Shared& shared) {
    std::string text;
    for (std::size_t i = 0; i < registers; ++i) text += std::to_string(shared.r.at(i));
    seen.insert(text);
  });
  EXPECT_FALSE(report.failure) << report;
  EXPECT_TRUE(report.complete) << report;
  return seen;
}

Outcomes store_buffering(std::memory_order store, std::memory_order load) {
  return outcomes(2, {[=](Shared& m) {
                        m.x.store(1, store);
                        m.r[0] = m.y.load(load);
                      },
                      [=](Shared& m) {
                        m.y.store(1, store);
                        m.r[1] = m.x.load(load);
                      }});
}

TEST(LitmusTest, StoreBuffering) {
  EXPECT_EQ(store_buffering(relaxed, relaxed), (Outcomes{"00", "01", "10", "11"}));
  EXPECT_EQ(store_buffering(release, acquire), (Outcomes{"00", "01", "10", "11"}));
  EXPECT_EQ(store_buffering(seq_cst, seq_cst), (Outcomes{"01", "10", "11"}));
  EXPECT_THAT(store_buffering(seq_cst, acquire), Contains("00")) << "all four accesses must be seq_cst";
  EXPECT_THAT(store_buffering(release, seq_cst), Contains("00"));
}

Outcomes store_buffering_with_fences(std::memory_order first, std::memory_order second) {
  return outcomes(2, {[=](Shared& m) {
                        m.x.store(1, relaxed);
                        fence(first);
                        m.r[0] = m.y.load(relaxed);
                      },
                      [=](Shared& m) {
                        m.y.store(1, relaxed);
                        fence(second);
                        m.r[1] = m.x.load(relaxed);
                      }});
}

TEST(LitmusTest, StoreBufferingWithFences) {
  EXPECT_EQ(store_buffering_with_fences(seq_cst, seq_cst), (Outcomes{"01", "10", "11"}));
  EXPECT_THAT(store_buffering_with_fences(seq_cst, acq_rel), Contains("00"));
}

TEST(LitmusTest, StoreBufferingWithAFenceOnOneSideAndSequentialAccessesOnTheOther) {
  const auto fence_against = [](std::memory_order other) {
    return outcomes(2, {[](Shared& m) {
                          m.x.store(1, relaxed);
                          fence(seq_cst);
                          m.r[0] = m.y.load(relaxed);
                        },
                        [=](Shared& m) {
                          m.y.store(1, other);
                          m.r[1] = m.x.load(other);
                        }});
  };
  EXPECT_EQ(fence_against(seq_cst), (Outcomes{"01", "10", "11"}));
  EXPECT_THAT(fence_against(relaxed), Contains("00"));
}

Outcomes message_passing(std::memory_order store, std::memory_order load) {
  return outcomes(2, {[=](Shared& m) {
                        m.x.store(1, relaxed);
                        m.y.store(1, store);
                      },
                      [=](Shared& m) {
                        m.r[0] = m.y.load(load);
                        m.r[1] = m.x.load(relaxed);
                      }});
}

TEST(LitmusTest, MessagePassing) {
  EXPECT_EQ(message_passing(relaxed, relaxed), (Outcomes{"00", "01", "10", "11"}));
  EXPECT_EQ(message_passing(release, acquire), (Outcomes{"00", "01", "11"}));
  EXPECT_EQ(message_passing(seq_cst, seq_cst), (Outcomes{"00", "01", "11"}));
  EXPECT_THAT(message_passing(release, relaxed), Contains("10")) << "both sides take part";
  EXPECT_THAT(message_passing(relaxed, acquire), Contains("10"));
}

TEST(LitmusTest, MessagePassingWithFences) {
  const auto with_fences = [](std::memory_order writer, std::memory_order reader) {
    return outcomes(2, {[=](Shared& m) {
                          m.x.store(1, relaxed);
                          fence(writer);
                          m.y.store(1, relaxed);
                        },
                        [=](Shared& m) {
                          m.r[0] = m.y.load(relaxed);
                          fence(reader);
                          m.r[1] = m.x.load(relaxed);
                        }});
  };
  EXPECT_EQ(with_fences(release, acquire), (Outcomes{"00", "01", "11"}));
  EXPECT_THAT(with_fences(acquire, acquire), Contains("10"));
  EXPECT_THAT(with_fences(release, release), Contains("10"));
}

TEST(LitmusTest, LoadBufferingIsAllowedButNotShown) {
  const auto seen = outcomes(2, {[](Shared& m) {
                                   m.r[0] = m.x.load(relaxed);
                                   m.y.store(1, relaxed);
                                 },
                                 [](Shared& m) {
                                   m.r[1] = m.y.load(relaxed);
                                   m.x.store(1, relaxed);
                                 }});
  EXPECT_EQ(seen, (Outcomes{"00", "01", "10"})) << "if 11 is seen now, explorer.h promises too little";
}

Outcomes independent_reads(std::memory_order store, std::memory_order load) {
  return outcomes(4, {[=](Shared& m) { m.x.store(1, store); }, [=](Shared& m) { m.y.store(1, store); },
                      [=](Shared& m) {
                        m.r[0] = m.x.load(load);
                        m.r[1] = m.y.load(load);
                      },
                      [=](Shared& m) {
                        m.r[2] = m.y.load(load);
                        m.r[3] = m.x.load(load);
                      }});
}

TEST(LitmusTest, IndependentReadsOfIndependentWrites) {
  EXPECT_EQ(independent_reads(release, acquire).size(), 16U);
  const auto sequential = independent_reads(seq_cst, seq_cst);
  EXPECT_EQ(sequential.size(), 15U);
  EXPECT_THAT(sequential, Not(Contains("1010"))) << "two readers that see two writes in different orders";
  EXPECT_THAT(independent_reads(relaxed, seq_cst), Not(Contains("1010"))) << "what seq_cst loads have read is in S";
  EXPECT_THAT(independent_reads(seq_cst, acquire), Contains("1010"));
}

Outcomes causality(std::memory_order store, std::memory_order load) {
  return outcomes(3, {[](Shared& m) { m.x.store(1, relaxed); },
                      [=](Shared& m) {
                        m.r[0] = m.x.load(relaxed);
                        m.y.store(1, store);
                      },
                      [=](Shared& m) {
                        m.r[1] = m.y.load(load);
                        m.r[2] = m.x.load(relaxed);
                      }});
}

TEST(LitmusTest, WhatHappenedBeforeWasReadIsReadAfter) {
  EXPECT_THAT(causality(relaxed, relaxed), Contains("110"));
  EXPECT_THAT(causality(release, acquire), Not(Contains("110")));
}

TEST(LitmusTest, CoherenceOfTwoReads) {
  const auto seen = outcomes(2, {[](Shared& m) {
                                   m.x.store(1, relaxed);
                                   m.x.store(2, relaxed);
                                 },
                                 [](Shared& m) {
                                   m.r[0] = m.x.load(relaxed);
                                   m.r[1] = m.x.load(relaxed);
                                 }});
  EXPECT_EQ(seen, (Outcomes{"00", "01", "02", "11", "12", "22"}));
}

TEST(LitmusTest, CoherenceOfAReadAfterAWrite) {
  const auto seen = outcomes(1, {[](Shared& m) {
                                   m.x.store(1, relaxed);
                                   m.r[0] = m.x.load(relaxed);
                                 },
                                 [](Shared& m) { m.x.store(2, relaxed); }});
  EXPECT_EQ(seen, (Outcomes{"1", "2"}));
}

TEST(LitmusTest, ReadModifyWritesLoseNothing) {
  const auto add = [](Shared& m) { m.x.fetch_add(1, relaxed); };
  const auto report =
      explore_all({add, add, add}, [](const Shared& m) { require(m.x.load() == 3, "three were added"); });
  EXPECT_FALSE(report.failure) << report;
  const auto apart = [](Shared& m) { m.x.store(m.x.load() + 1); };
  EXPECT_EQ(failure(explore_all({apart, apart}, [](const Shared& m) { require(m.x.load() == 2, "lost"); })), "lost");
}

TEST(LitmusTest, OneCompareExchangeWins) {
  const auto seen = outcomes(2, {[](Shared& m) {
                                   int expected = 0;
                                   m.r[0] = m.x.compare_exchange_strong(expected, 1) ? 1 : 0;
                                 },
                                 [](Shared& m) {
                                   int expected = 0;
                                   m.r[1] = m.x.compare_exchange_strong(expected, 2) ? 1 : 0;
                                 }});
  EXPECT_EQ(seen, (Outcomes{"01", "10"}));
}

TEST(LitmusTest, AFailedCompareExchangeIsALoad) {
  const auto failing = [](std::memory_order store, std::memory_order order) {
    return outcomes(1, {[=](Shared& m) {
                          m.x.store(1, store);
                          m.x.store(2, store);
                        },
                        [=](Shared& m) {
                          int expected = 7;
                          m.x.compare_exchange_strong(expected, 8, order, order);
                          m.r[0] = expected;
                        }});
  };
  EXPECT_EQ(failing(relaxed, relaxed), (Outcomes{"0", "1", "2"}));
  const auto after_a_flag = outcomes(2, {[](Shared& m) {
                                           m.x.store(1, relaxed);
                                           m.y.store(1, relaxed);
                                         },
                                         [](Shared& m) {
                                           m.r[0] = m.y.load(relaxed);
                                           int expected = 7;
                                           m.x.compare_exchange_strong(expected, 8, relaxed, relaxed);
                                           m.r[1] = expected;
                                         }});
  EXPECT_THAT(after_a_flag, Contains("10")) << "it may be out of date";
}

TEST(LitmusTest, AWeakCompareExchangeMayFailForNoReason) {
  const auto weak = outcomes(1, {[](Shared& m) {
                               int expected = 0;
                               m.r[0] = m.x.compare_exchange_weak(expected, 1) ? 1 : 0;
                             }});
  EXPECT_EQ(weak, (Outcomes{"0", "1"}));
  const auto loop = explore_all({[](Shared& m) {
    int expected = 0;
    while (!m.x.compare_exchange_weak(expected, 1)) {
    }
  }});
  EXPECT_FALSE(loop.failure) << loop;
  EXPECT_TRUE(loop.complete) << "it does not fail for ever";
}

/// T1 publishes data through x, T3 reads it when x is 2, and T2 makes it 2.
Report relayed(const Body& relay) {
  return explore_all({[](Shared& m) {
                        m.data = 1;
                        m.x.store(1, release);
                      },
                      relay,
                      [](Shared& m) {
                        if (m.x.load(acquire) == 2) require(m.data == 1, "published");
                      }});
}

TEST(LitmusTest, AReleaseSequenceGoesOnThroughReadModifyWrites) {
  const auto through_rmw = relayed([](Shared& m) {
    int expected = 1;
    m.x.compare_exchange_strong(expected, 2, relaxed, relaxed);
  });
  EXPECT_FALSE(through_rmw.failure) << through_rmw;
  const auto through_store = relayed([](Shared& m) {
    if (m.x.load(relaxed) == 1) m.x.store(2, relaxed);
  });
  EXPECT_THAT(failure(through_store), HasSubstr("data race on data"));
}

TEST(LitmusTest, AReleaseSequenceEndsAtAStoreOfTheSameThread) {
  const auto report = explore_all({[](Shared& m) {
                                     m.data = 1;
                                     m.x.store(1, release);
                                     m.x.store(2, relaxed);
                                   },
                                   [](Shared& m) {
                                     if (m.x.load(acquire) == 2) require(m.data == 1, "published");
                                   }});
  EXPECT_THAT(failure(report), HasSubstr("data race on data")) << "C++20 has taken these stores out of it";
}

Report publish(std::memory_order store, std::memory_order load) {
  return explore_all({[=](Shared& m) {
                        m.data = 1;
                        m.x.store(1, store);
                      },
                      [=](Shared& m) {
                        if (m.x.load(load) == 1) require(m.data == 1, "published");
                      }});
}

TEST(LitmusTest, DataRaces) {
  EXPECT_FALSE(publish(release, acquire).failure);
  EXPECT_FALSE(publish(seq_cst, seq_cst).failure);
  for (const auto& report : {publish(relaxed, acquire), publish(release, relaxed)}) {
    EXPECT_THAT(failure(report), HasSubstr("data race on data: write by T1 (event 1) and read by T2 (event 4)"));
  }
  const auto write_after_read = explore_all({[](Shared& m) {
                                               m.r[0] = m.data;
                                               m.x.store(1, relaxed);
                                             },
                                             [](Shared& m) {
                                               if (m.x.load(acquire) == 1) m.data = 1;
                                             }});
  EXPECT_THAT(failure(write_after_read), HasSubstr("read by T1"));
  const auto two_reads = explore_all({[](Shared& m) { m.r[0] = m.data; }, [](Shared& m) { m.r[1] = m.data; }});
  EXPECT_FALSE(two_reads.failure) << two_reads;
}

TEST(LitmusTest, AccessesAfterAReleaseAreNotPublishedByIt) {
  const auto report = explore_all({[](Shared& m) {
                                     m.x.store(1, release);
                                     m.data = 1;
                                   },
                                   [](Shared& m) {
                                     if (m.x.load(acquire) == 1) m.r[0] = m.data;
                                   }});
  EXPECT_THAT(failure(report), HasSubstr("data race"));
}

TEST(LitmusTest, SequentialFencesAloneDoNotPublish) {
  const auto report = explore_all({[](Shared& m) {
                                     m.data = 1;
                                     fence(seq_cst);
                                   },
                                   [](Shared& m) {
                                     fence(seq_cst);
                                     m.r[0] = m.data;
                                   }});
  EXPECT_THAT(failure(report), HasSubstr("data race")) << "they have an order, but no store is read";
}

/// Where a sleeper and its waker cross: each stores something and reads what the other stores.
Report sleep_and_wake(std::memory_order store, std::memory_order load) {
  return explore({.search = Search::exhaustive, .executions = 1'000'000}, [=](Program& program) {
    struct Door {
      Atomic<std::uint32_t> open{0};
      Atomic<std::uint32_t> sleepers{0};
    };
    auto& door = program.make<Door>();
    name(door.open, "open");
    name(door.sleepers, "sleepers");
    program.thread("waker", [=, &door] {
      door.open.store(1, store);
      if (door.sleepers.load(load) != 0) futex_wake(door.open);
    });
    program.thread("sleeper", [=, &door] {
      door.sleepers.store(1, store);
      while (door.open.load(load) == 0) futex_wait(door.open, 0);
    });
  });
}

TEST(LitmusTest, SleepAndWake) {
  const auto sequential = sleep_and_wake(seq_cst, seq_cst);
  EXPECT_FALSE(sequential.failure) << sequential;
  EXPECT_TRUE(sequential.complete);
  const std::array weaker{sleep_and_wake(relaxed, relaxed), sleep_and_wake(release, acquire),
                          sleep_and_wake(seq_cst, acquire), sleep_and_wake(release, seq_cst)};
  for (const auto& report : weaker) {
    EXPECT_EQ(failure(report), "deadlock: sleeper sleeps on open, which is 1") << report;
  }
}

}  // namespace
}  // namespace cohort::model::test
