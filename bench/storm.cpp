// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "benchmarks.h"
#include "measure/statistics.h"
#include "servers.h"

namespace cohort::bench {

namespace {

/// The part of one process: all its connections arrive, then all wait for a key that the last one of the job sets.
void storm(Channel& parent, const TcpStoreOptions& options, int connections, int everyone) {
  parent.receive<char>();
  std::vector<std::unique_ptr<TcpStore>> stores;
  for (int i = 0; i < connections; ++i) {
    stores.push_back(std::make_unique<TcpStore>(options));
    if (stores.back()->add("arrived", 1) == everyone) stores.back()->set("gate", "open");
  }
  for (const auto& store : stores) store->wait({"gate"});
  parent.send('p');
  parent.wait_for_end();  // until all have passed: disconnecting costs the server time, too
}

double storm_once(const StormOptions& options) {
  const auto secret = Secret::generate();
  const auto server = start_store(secret);
  const auto client = client_options(server.port, secret);
  std::vector<Child> processes;
  for (int i = 0; i < options.processes; ++i) {
    processes.emplace_back(
        [&](Channel& parent) { storm(parent, client, options.connections, options.processes * options.connections); });
  }
  const auto start = Clock::now();
  for (auto& process : processes) process.channel().send('s');
  for (auto& process : processes) process.channel().receive<char>();
  const double time = seconds_since(start);
  // All at once, and only then one after the other.
  for (auto& process : processes) process.channel().end();
  return time;
}

}  // namespace

void measure_storm(const StormOptions& options, Report& report) {
  constexpr double most = 2;
  constexpr unsigned cores = 16;
  raise_descriptor_limit(static_cast<std::size_t>(options.processes * options.connections) + 100);
  std::vector<double> times;
  for (int round = 0; round < options.rounds; ++round) times.push_back(storm_once(options));
  report.add({.what = fmt::format("{} x {} connect, authenticate, barrier", options.processes, options.connections),
              .unit = "s",
              .ours = median(times),
              .bar = Bar{Bar::Kind::at_most, most, cores}});
}

}  // namespace cohort::bench
