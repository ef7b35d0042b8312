// SPDX-License-Identifier: BSD-3-Clause
//
// Measures the store against its bars (docs/performance.md).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "program.h"
#include "torch_store.h"

namespace {

using namespace cohort::bench;

struct Arguments {
  RoundTripOptions round_trip;
  ThroughputOptions throughput;
  JoinOptions join;
  StormOptions storm;
  MemoryOptions memory;
};

const std::vector<std::string> figures{"round_trip", "throughput", "join", "storm", "memory"};

void describe(CLI::App& app, Arguments& arguments) {
  const auto positive = [&app](const std::string& name, int& value, const std::string& what) {
    app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  positive("--round-trip-rounds", arguments.round_trip.rounds, "Rounds of the round trip");
  positive("--round-trip-operations", arguments.round_trip.operations, "Operations per figure and round");
  positive("--throughput-rounds", arguments.throughput.rounds, "Rounds of the throughput");
  positive("--throughput-clients", arguments.throughput.clients, "Clients, each a thread with a connection");
  positive("--throughput-ms", arguments.throughput.milliseconds, "Time per figure and round");
  positive("--join-rounds", arguments.join.rounds, "Rounds of joining");
  positive("--join-clients", arguments.join.clients, "Processes that wait for the server");
  positive("--storm-rounds", arguments.storm.rounds, "Rounds of the storm");
  positive("--storm-processes", arguments.storm.processes, "Processes of the storm");
  positive("--storm-connections", arguments.storm.connections, "Connections of each process");
  positive("--memory-connections", arguments.memory.connections, "Idle connections");
}

void run(const Program& program, const Arguments& arguments, Report& report) {
  if (!TorchStore::is_available()) {
    fmt::print("PyTorch's TCPStore is skipped: this program was built without libtorch (Debian: libtorch-dev)\n");
  }
  // First, while this process is small: servers are forked from it.
  if (program.wants("memory")) {
    measure_memory(arguments.memory, report);
    report.print("Memory of the server (secret, no TLS)");
  }
  if (program.wants("round_trip")) {
    measure_round_trip(arguments.round_trip, report);
    report.print("Round trip over TCP loopback, median of a call");
  }
  if (program.wants("throughput")) {
    measure_throughput(arguments.throughput, report);
    report.print("Operations per second, values of 64 bytes");
  }
  if (program.wants("join")) {
    measure_join(arguments.join, report);
    report.print("Clients that started before the server: from its start to their first answer");
  }
  if (program.wants("storm")) {
    measure_storm(arguments.storm, report);
    report.print("Connection storm: from the start signal until the last connection has passed the barrier");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Program program(
      "Measures the store: its round trip against a bare echo, its throughput and its joining against "
      "PyTorch's TCPStore, a connection storm, memory per connection.",
      figures);
  Arguments arguments;
  describe(program.app, arguments);
  return program.run(argc, argv, [&](Report& report) { run(program, arguments, report); });
}
