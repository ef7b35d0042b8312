// SPDX-License-Identifier: BSD-3-Clause
//
// Random trainings learn what one process learns, with the same bits on all ranks. One that fails is made as plain as
// possible and printed as the text that runs it again:
//
//   COHORT_TEST_SEED=5000 COHORT_TEST_TRAININGS=1000 torch_trainings_test --gtest_filter=RandomTrainings.*
//   COHORT_TEST_TRAINING="ranks=2 captured=yes" torch_trainings_test --gtest_filter=RandomTrainings.*
#include <ATen/Parallel.h>
#include <cohort/log.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "torch/trainings/training.h"

namespace cohort::test::trainings {

namespace {

std::uint32_t number_from(const char* variable, std::uint32_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

// Sanitizers look at the code, for which a few will do.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t trainings_for_every_change = 60;
#else
constexpr std::uint32_t trainings_for_every_change = 8000;  // one or two minutes
#endif
constexpr int shown = 3;  // of those that fail

TEST(RandomTrainings, LearnWhatOneProcessLearns) {
  at::set_num_threads(1);
  if (const char* const text = std::getenv("COHORT_TEST_TRAINING")) {
    bool was_refused = false;
    EXPECT_EQ(failure_of(Training::parse(text), &was_refused), "");
    EXPECT_FALSE(was_refused) << "on all ranks";
    return;
  }
  // Advice on what was chosen at random would be all that one sees.
  set_log_level(LogLevel::error);
  const auto first = number_from("COHORT_TEST_SEED", 1);
  const auto count = number_from("COHORT_TEST_TRAININGS", trainings_for_every_change);
  std::uint32_t refused = 0;
  int failed = 0;
  for (auto seed = first; seed < first + count; ++seed) {
    const auto training = generate(seed);
    bool was_refused = false;
    const auto failure = failure_of(training, &was_refused);
    refused += was_refused ? 1 : 0;
    if (failure.empty() || ++failed > shown) continue;
    // Before it is made plainer, which takes long if it hangs.
    std::cout << "seed " << seed << ": " << training.text() << std::endl;
    const auto plain = shrink(training, [](const Training& each) { return !failure_of(each).empty(); });
    ADD_FAILURE() << "seed " << seed << " (" << training.text() << "):\n"
                  << failure << "\nmade plainer: " << plain.text() << "\n"
                  << failure_of(plain);
  }
  EXPECT_LE(failed, shown) << "trainings failed, of which so many are shown";
  RecordProperty("refused", static_cast<int>(refused));
  EXPECT_LE(refused, count / 5) << "so much is refused that little is tried";
}

TEST(RandomTrainings, AreTheSameForTheSameSeedAndAllChoicesOccur) {
  std::map<std::string, int> seen;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const auto training = generate(seed);
    EXPECT_TRUE(training.is_fit());
    EXPECT_EQ(Training::parse(training.text()).picks, training.picks);
    for (std::size_t i = 0; i < training.picks.size(); ++i) {
      const auto& choice = choices()[i];
      ++seen[std::string(choice.name) + "=" + std::string(choice.values[training.picks[i]])];
    }
  }
  EXPECT_EQ(generate(7).picks, generate(7).picks);
  for (const auto& choice : choices()) {
    for (const auto value : choice.values) {
      EXPECT_GT(seen[std::string(choice.name) + "=" + std::string(value)], 0) << choice.name << "=" << value;
    }
  }
}

TEST(RandomTrainings, ShrinkToWhatMatters) {
  const auto has_the_bug = [](const Training& training) {
    return training.has("captured", "yes") && training.has("by", "zero") && training.number("ranks") >= 2;
  };
  int found = 0;
  for (std::uint32_t seed = 0; found < 5 && seed < 50000; ++seed) {
    const auto training = generate(seed);
    if (!has_the_bug(training)) continue;
    ++found;
    EXPECT_EQ(shrink(training, has_the_bug).text(), "ranks=2 steps=7 by=zero captured=yes");
  }
  EXPECT_EQ(found, 5);
}

}  // namespace

}  // namespace cohort::test::trainings
