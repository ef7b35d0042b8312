// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "echo.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

/// The median time of one call, in microseconds: the mean would count every time slice that another program took.
double median_time(int operations, const std::function<void()>& call) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(operations));
  for (int i = 0; i < operations; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(seconds_since(start) * 1e6);
  }
  return median(std::move(times));
}

/// The scheduler would put client and server sometimes on one CPU and sometimes on two, which changes the time by a
/// factor of two; so each placement is measured separately.
struct Placement {
  const char* name;
  int client_cpu;
  int server_cpu;
};

void measure_placed(const Placement& placement, std::size_t size, int rounds, Report& report) {
  constexpr int operations = 200;
  const auto secret = Secret::generate();
  const OnCpu servers_place(placement.server_cpu);
  const auto server = start_store(secret);
  const auto echo_server = start_echo();
  const OnCpu clients_place(placement.client_cpu);
  TcpStore store(client_options(server.port, secret));
  EchoClient echo(echo_server.port, size);

  const std::string value(size, 'x');
  const auto set = [&] { store.set("key", value); };
  const auto get = [&] {
    if (store.get("key").size() != size) throw std::runtime_error("a value of another size");
  };
  const auto bare = [&] { echo.round_trip(); };
  set();
  const std::array<std::function<void()>, 3> calls{bare, set, get};
  const auto time = [&](std::size_t which) { return median_time(operations, calls.at(which)); };
  take_turns(calls.size(), 1, time);  // warms up
  const auto times = take_turns(calls.size(), rounds, time);
  for (const auto& [name, which] : {std::pair("set", 1U), std::pair("get", 2U)}) {
    report.add(compared(fmt::format("{}, {} bytes, {}", name, size, placement.name), "us", times.at(which), times[0],
                        "bare echo", at_most(1.5)));
  }
}

void measure(int rounds, Report& report) {
  const auto cpus = OnCpu::allowed();
  std::vector<Placement> placements{{"one CPU", cpus.front(), cpus.front()}};
  if (cpus.size() > 1) placements.push_back({"two CPUs", cpus.front(), cpus.back()});
  for (const auto& placement : placements) {
    for (const std::size_t size : {std::size_t{64}, std::size_t{1024}}) {
      measure_placed(placement, size, rounds, report);
    }
  }
  report.print("Round trip over TCP loopback, median of a call");
}

}  // namespace

void add_round_trip(Program& program) {
  program.part("round_trip", [&program](Report& report) { measure(program.rounds(60), report); });
}

}  // namespace cohort::benchmarks
