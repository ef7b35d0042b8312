// SPDX-License-Identifier: BSD-3-Clause
//
// One rank of a job for startup_bench.py: makes a group, passes a barrier and writes into a file of its own when that
// was (CLOCK_MONOTONIC, which is one for all processes of a host), and how long split_group takes.
//
//   cohort run -n N first_barrier FOLDER
#include <cohort/new_group.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "measure/statistics.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double split_seconds(cohort::ProcessGroup& group) {
  constexpr int rounds = 21;
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    group.barrier();
    const auto start = Clock::now();
    const auto part = group.split_group(all);
    times.push_back(seconds(Clock::now() - start));
  }
  return cohort::measure::median(times);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: cohort run -n N first_barrier FOLDER\n");
    return 2;
  }
  try {
    const auto group = cohort::new_group("shm", 60s, "cpu");
    group->barrier();
    const auto passed = Clock::now().time_since_epoch();
    std::ofstream(fmt::format("{}/{}", argv[1], ::getpid()))
        << fmt::format("{:.9f} {:.9f}\n", seconds(passed), split_seconds(*group));
    group->barrier();
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "first_barrier: {}\n", e.what());
    return 1;
  }
}
