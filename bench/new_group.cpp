// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/new_group.h>

#include <fmt/format.h>

#include <memory>
#include <thread>

#include "group_benchmarks.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "servers.h"
#include "torch_group.h"
#include "torch_store.h"

namespace cohort::bench {

namespace {

using namespace std::chrono_literals;

struct Start {
  Clock::time_point at;  ///< all ranks call at the same moment
};
using Ranks = RankProcesses<Start>;

/// The time of the slowest rank in microseconds. All ranks are waiting before the moment at which they call.
double measure_once(Ranks& ranks) {
  return ranks.ask({Clock::now() + 20ms}).slowest() * 1e6;
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
    auto group = std::make_shared<TorchGroup>(loopback, server.port);
    return [group, rank, size](const Start& start) {
      std::this_thread::sleep_until(start.at);
      return timed([&] { group->make(rank, size); });
    };
  });
  return measure_once(ranks);
}

}  // namespace

void measure_new_group(const NewGroupOptions& options, Report& report) {
  constexpr double least_speedup = 5;
  for (const int size : options.ranks) {
    const std::size_t contestants = TorchGroup::is_available() ? 2 : 1;
    const auto times = take_turns(contestants, options.rounds, [size](std::size_t contestant) {
      return contestant == 0 ? ours_once(size) : torch_once(size);
    });
    Row row{.what = fmt::format("{} ranks, slowest one", size), .unit = "us", .ours = median(times[0])};
    if (contestants == 1) {
      row.note = "PyTorch's gloo skipped: built without libtorch or gloo";
    } else {
      row.peer = median(times[1]);
      row.peer_name = "PyTorch " + TorchStore::version() + " gloo";
      row.ratio = median_ratio(times[1], times[0]);  // how many times faster ours is
      row.bar = Bar{Bar::Kind::at_least, least_speedup};
    }
    report.add(row);
  }
}

}  // namespace cohort::bench
