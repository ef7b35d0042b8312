// SPDX-License-Identifier: BSD-3-Clause
//
// A rank for the tests in this folder: it computes sums without end, or a given number of times, and prints the error
// that ended them and when (by the clock that all hosts of one machine share).
//
//   stream_rank BACKEND TIMEOUT_MS [ROUNDS]
#include <cohort/cohort.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace {

/// Enough for slices for all leaders of backend hybrid.
constexpr std::size_t elements = 64 * 1024;
/// The number of rounds after which the stream counts as running.
constexpr int warm_up = 5;

std::int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Prints the line in one write, so that lines of several ranks do not mix.
void say(const std::string& line) {
  std::cout << line + "\n" << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  // The launcher ends the ranks of a failed job, but these tests ask what the ranks see of the failure themselves.
  static_cast<void>(::signal(SIGTERM, SIG_IGN));
  const std::chrono::milliseconds timeout(std::stol(argv[2]));
  const int rounds = argc > 3 ? std::stoi(argv[3]) : std::numeric_limits<int>::max();
  cohort::ProcessGroupPtr group;  // outlives the error: how long its end takes is not tested here
  try {
    group = cohort::new_group(argv[1], std::chrono::seconds(30), "cpu");
    std::vector<float> data(elements);
    for (int round = 0; round < rounds; ++round) {
      if (round == warm_up) say("ready pid " + std::to_string(::getpid()));
      std::fill(data.begin(), data.end(), static_cast<float>(group->rank() + 1));
      group->all_reduce(data, {.timeout = timeout});
      const auto expected = static_cast<float>(group->size() * (group->size() + 1) / 2);
      if (data.front() != expected || data.back() != expected) {
        say("wrong sum");
        return 3;
      }
    }
    say("finished");
    group->barrier();
  } catch (const cohort::Error& e) {
    const auto rank = e.context().rank;
    say("caught at " + std::to_string(now()) + " " + std::string(to_string(e.kind())) + " rank " +
        std::to_string(rank.value_or(-1)) + ": " + e.what());
    return 1;
  }
  return 0;
}
