// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/new_group.h>

#include <fmt/format.h>

#include <memory>
#include <thread>

#include "group_benchmarks.h"
#include "rank_processes.h"
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

/// The slowest rank's, in microseconds. By the time they call, all of them wait for it.
double measure_once(Ranks& ranks) {
  return ranks.ask({Clock::now() + 20ms}).slowest() * 1e6;
}

// Processes and store are new in each round, as they are when a job starts: what only the first group of a process
// costs is in the figures, connecting to the store is not.

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
    std::vector<double> ours;
    std::vector<double> torch;
    for (int round = 0; round < options.rounds; ++round) {
      const bool is_first = round % 2 == 0;
      if (is_first) ours.push_back(ours_once(size));
      if (TorchGroup::is_available()) torch.push_back(torch_once(size));
      if (!is_first) ours.push_back(ours_once(size));
    }
    Row row{.what = fmt::format("{} ranks, slowest one", size), .unit = "us", .ours = median(ours)};
    if (torch.empty()) {
      row.note = "PyTorch's gloo skipped: built without libtorch or gloo";
    } else {
      row.peer = median(torch);
      row.peer_name = "PyTorch " + TorchStore::version() + " gloo";
      // Times: how many of ours go into one of theirs.
      row.ratio = Rounds{.ours = torch, .peer = ours}.median_ratio();
      row.bar = Bar{Bar::Kind::at_least, least_speedup};
    }
    report.add(row);
  }
}

}  // namespace cohort::bench
