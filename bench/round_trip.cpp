// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "echo.h"
#include "servers.h"

namespace cohort::bench {

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

/// Left to itself the scheduler puts client and server now on one CPU and now on two, which changes the time twofold:
/// each placement is measured for itself.
struct Placement {
  const char* name;
  int client_cpu;
  int server_cpu;
};

void measure_placed(const Placement& placement, std::size_t size, const RoundTripOptions& options, Report& report) {
  constexpr double most = 1.5;
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
  Rounds sets;
  Rounds gets;
  for (int round = 0; round < options.rounds + 1; ++round) {
    const double before = median_time(options.operations, bare);
    const double set_time = median_time(options.operations, set);
    const double get_time = median_time(options.operations, get);
    const double after = median_time(options.operations, bare);
    if (round == 0) continue;  // warms up
    const double echo_time = (before + after) / 2;
    sets.ours.push_back(set_time);
    sets.peer.push_back(echo_time);
    gets.ours.push_back(get_time);
    gets.peer.push_back(echo_time);
  }
  for (const auto& [name, rounds] : {std::pair("set", &sets), std::pair("get", &gets)}) {
    report.add({.what = fmt::format("{}, {} bytes, {}", name, size, placement.name),
                .unit = "us",
                .ours = median(rounds->ours),
                .peer = median(rounds->peer),
                .peer_name = "bare echo",
                .ratio = rounds->median_ratio(),
                .bar = Bar{Bar::Kind::at_most, most}});
  }
}

}  // namespace

void measure_round_trip(const RoundTripOptions& options, Report& report) {
  const auto cpus = OnCpu::allowed();
  std::vector<Placement> placements{{"one CPU", cpus.front(), cpus.front()}};
  if (cpus.size() > 1) placements.push_back({"two CPUs", cpus.front(), cpus.back()});
  for (const auto& placement : placements) {
    for (const std::size_t size : {std::size_t{64}, std::size_t{1024}}) {
      measure_placed(placement, size, options, report);
    }
  }
}

}  // namespace cohort::bench
