// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "benchmarks.h"
#include "measure/statistics.h"
#include "servers.h"

namespace cohort::benchmarks {

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

double storm_once(int count, int connections) {
  const auto secret = Secret::generate();
  const auto server = start_store(secret);
  const auto client = client_options(server.port, secret);
  std::vector<Child> processes;
  for (int i = 0; i < count; ++i) {
    processes.emplace_back([&](Channel& parent) { storm(parent, client, connections, count * connections); });
  }
  const auto start = Clock::now();
  for (auto& process : processes) process.channel().send('s');
  for (auto& process : processes) process.channel().receive<char>();
  const double time = seconds_since(start);
  // All at once, and only then one after the other.
  for (auto& process : processes) process.channel().end();
  return time;
}

void measure(int rounds, int processes, int connections, Report& report) {
  raise_descriptor_limit(static_cast<std::size_t>(processes * connections) + 100);
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) times.push_back(storm_once(processes, connections));
  report.add({.what = fmt::format("{} x {} connect, authenticate, barrier", processes, connections),
              .unit = "s",
              .ours = median(times),
              .bar = at_most(2, 16)});
  report.print("Connection storm: from the start signal until the last connection has passed the barrier");
}

}  // namespace

void add_storm(Program& program) {
  const auto processes = program.number("--storm-processes", 16, "Processes of the storm");
  const auto connections = program.number("--storm-connections", 250, "Connections of each process");
  program.part("storm",
               [=, &program](Report& report) { measure(program.rounds(3), *processes, *connections, report); });
}

}  // namespace cohort::benchmarks
