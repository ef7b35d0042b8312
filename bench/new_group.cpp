// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/new_group.h>

#include <fmt/format.h>

#include <memory>
#include <thread>

#include "benchmarks.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "servers.h"
#include "torch_peers.h"

namespace cohort::benchmarks {

namespace {

using namespace std::chrono_literals;

struct Start {
  Clock::time_point at;  ///< all ranks call at the same moment
};
using Ranks = RankProcesses<Start>;

/// The time of the slowest rank in microseconds. All ranks are waiting before the moment at which they call.
double measure_once(Ranks& ranks) {
  return slowest(ranks.ask({Clock::now() + 20ms})) * 1e6;
}

// Processes and store are new in each round, as they are when a job starts: the figures include what only the first
// group of a process costs, but not connecting to the store.

double ours_once(int size) {
  const auto server = start_store_on_unix_socket();
  Ranks ranks(size, [&](int rank) -> Ranks::Answer {
    auto store = std::make_shared<TcpStore>(unix_client_options());
    return [store, rank, size, group = ProcessGroupPtr()](const Start& start) mutable {
      std::this_thread::sleep_until(start.at);
      return timed([&] { group = new_group("shm", 60s, "cpu", {}, {.store = store, .rank = rank, .size = size}); });
    };
  });
  return measure_once(ranks);
}

double torch_once(int size) {
  const auto server = start_torch_store();
  Ranks ranks(size, [&](int rank) -> Ranks::Answer {
    const std::shared_ptr<TorchGroup> group = make_torch_group(loopback, server.port);
    return [group, rank, size](const Start& start) {
      std::this_thread::sleep_until(start.at);
      return timed([&] { group->make(rank, size); });
    };
  });
  return measure_once(ranks);
}

void measure(int rounds, const std::vector<int>& sizes, Report& report) {
  if (!has_torch_group) {
    fmt::print("PyTorch's gloo is skipped: this program was built without libtorch or gloo (Debian: libtorch-dev)\n");
  }
  for (const int size : sizes) {
    const auto times = take_turns(has_torch_group ? 2 : 1, rounds, [size](std::size_t which) {
      return which == 0 ? ours_once(size) : torch_once(size);
    });
    const auto what = fmt::format("{} ranks, slowest one", size);
    report.add(has_torch_group
                   ? compared(what, "us", times[0], times[1], "PyTorch " + torch_version + " gloo", at_least(5))
                   : Row{.what = what, .unit = "us", .ours = median(times[0])});
  }
  report.print("new_group on one host, from call to return (ratio: how many times faster)");
}

}  // namespace

void add_new_group(Program& program) {
  const auto sizes = program.list("--ranks", {2, 8, 32}, "Sizes of the groups that new_group makes");
  program.part("new_group", [=, &program](Report& report) { measure(program.rounds(11), *sizes, report); });
}

}  // namespace cohort::benchmarks
