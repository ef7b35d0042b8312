// SPDX-License-Identifier: BSD-3-Clause
//
// Random ranks of random groups are killed at random moments of random operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <random>
#include <vector>

#include "faults/fault_scenario.h"
#include "faults/operations.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

/// The next number of a sequence that is the same on all ranks with the same seed.
void run_something(ProcessGroup& group, Scratch& scratch, std::mt19937& random) {
  constexpr std::size_t sizes[] = {1, 8, 100, 2'048, 5'000, 70'000, 300'000};
  const auto elements = sizes[random() % std::size(sizes)];
  const auto root = static_cast<int>(random() % static_cast<unsigned>(group.size()));
  switch (random() % 9) {
    case 0:
      group.all_reduce(scratch.data(elements));
      break;
    case 1:
      group.all_reduce(scratch.shared().first(elements));
      break;
    case 2:
      group.broadcast(scratch.data(elements), {.root = root});
      break;
    case 3:
      group.reduce(scratch.data(elements), {.root = root});
      break;
    case 4:
      group.all_gather(scratch.for_all(elements), scratch.data(elements));
      break;
    case 5:
      group.reduce_scatter(scratch.data(elements), scratch.for_all(elements));
      break;
    case 6:
      group.all_to_all(scratch.from_all(elements), scratch.for_all(elements));
      break;
    case 7:
      exchange_with_neighbours(group, scratch, elements);
      break;
    default:
      group.barrier();
  }
}

class RandomKills : public FaultTest {
 protected:
  void run(std::uint32_t seed, int iterations) {
    std::cout << "[  scenario   ] seed " << seed << "\n";
    std::mt19937 random(seed);
    std::vector<std::int64_t> took;
    for (int i = 0; i < iterations; ++i) {
      const int size = 3 + static_cast<int>(random() % 2);
      const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
      const auto delay = std::chrono::microseconds(random() % 12'000);
      const auto operations = static_cast<std::uint32_t>(random());
      SCOPED_TRACE("seed " + std::to_string(seed) + ", iteration " + std::to_string(i) + ": rank " +
                   std::to_string(victim) + " of " + std::to_string(size));
      FaultScenario scenario(store(), size, [&](Member& me) {
        auto group = me.join(30s);
        Scratch scratch(*group);
        me.say("made");
        me.attempt("operation", [&] {
          std::mt19937 sequence(operations);
          for (;;) run_something(*group, scratch, sequence);
        });
        me.attempt("shrink", [&] {
          group = group->shrink({.timeout = 10s});
          EXPECT_EQ(group->size(), me.size() - 1);
          expect_all_reduce_works(*group, 50'000);
          group->barrier();
        });
      });
      scenario.hear_all("made");
      std::this_thread::sleep_for(delay);
      const auto start = scenario.signal(victim, SIGKILL);
      for (const auto& word : scenario.hear_all("operation", victim)) {
        EXPECT_EQ(word.type, "PeerLostError") << word;
        EXPECT_EQ(word.at_fault, victim) << word;
        took.push_back(milliseconds_between(start, word.when));
      }
      for (const auto& word : scenario.hear_all("shrink", victim)) EXPECT_EQ(word.type, "") << word;
      EXPECT_EQ(scenario.end_of(victim), 128 + SIGKILL);
      scenario.expect_end(victim);
      ASSERT_FALSE(HasFailure());
    }
    std::sort(took.begin(), took.end());
    const auto median = took[took.size() / 2];
    std::cout << "[  scenario   ] noticed after " << median << " ms (median), at most " << took.back() << " ms\n";
    EXPECT_LT(median, 100);
    EXPECT_LT(took.back(), 1000);
  }
};

#ifdef COHORT_LONG_SCENARIOS
TEST_F(RandomKills, TwoThousand) {
  for (std::uint32_t seed = 100; seed < 110; ++seed) run(seed, 200);
}
#else
TEST_F(RandomKills, TwoHundred) {
  run(1, 200);
}
#endif

}  // namespace
}  // namespace cohort::test
