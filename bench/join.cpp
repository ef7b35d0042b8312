// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks.h"
#include "common/free_port.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "servers.h"
#include "torch_peers.h"

namespace cohort::benchmarks {

namespace {

/// The steady clock is one for all processes of a host.
using Ticks = Clock::rep;
Ticks now() {
  return Clock::now().time_since_epoch().count();
}
double milliseconds(Ticks ticks) {
  return std::chrono::duration<double, std::milli>(Clock::duration(ticks)).count();
}

struct Kind {
  std::function<void(std::uint16_t port)> join;                     ///< connects and completes one operation
  std::function<std::shared_ptr<void>(std::uint16_t port)> listen;  ///< what it returns is the server
};

/// The time from the server's start to the last client's first answer, in milliseconds.
double join_once(const Kind& kind, int count, std::chrono::milliseconds head_start) {
  const auto port = tool::free_port();
  std::vector<Child> clients;
  for (int i = 0; i < count; ++i) {
    clients.emplace_back([&](Channel& parent) {
      kind.join(port);
      parent.send(now());
    });
  }
  std::this_thread::sleep_for(head_start);
  Child server([&](Channel& parent) {
    // Before, not after: the clients also wait while the server starts.
    const auto start = now();
    const auto listening = kind.listen(port);
    parent.send(start);
    parent.wait_for_end();
  });
  const auto start = server.channel().receive<Ticks>();
  double last = 0;
  for (auto& client : clients) last = std::max(last, milliseconds(client.channel().receive<Ticks>() - start));
  return last;
}

void measure(int rounds, int clients, Report& report) {
  const auto secret = Secret::generate();
  const Kind ours{[&](std::uint16_t port) { TcpStore(client_options(port, secret)).add("joined", 1); },
                  [&](std::uint16_t port) {
                    return std::make_shared<StoreServer>(
                        StoreServerOptions{.endpoint = Endpoint::tcp(loopback, port), .secret = secret});
                  }};
  const Kind torch{[](std::uint16_t port) { make_torch_store(loopback, port, false)->add("joined", 1); },
                   [](std::uint16_t port) { return make_torch_store(loopback, port, true); }};
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> head_start(100, 600);
  // Each round's last client.
  const auto lasts = take_turns(torch_version.empty() ? 1 : 2, rounds, [&](std::size_t which) {
    return join_once(which == 0 ? ours : torch, clients, std::chrono::milliseconds(head_start(random)));
  });
  const auto add = [&](const std::string& what, double (*figure)(std::vector<double>), std::optional<Bar> bar) {
    Row row{.what = fmt::format("last of {} clients, {}", clients, what), .unit = "ms", .ours = figure(lasts[0])};
    row.bar = bar;
    if (lasts.size() > 1) {
      row.peer = figure(lasts[1]);
      row.peer_name = "PyTorch " + torch_version;
    }
    report.add(row);
  };
  add("median", median, at_most(20));
  add("worst round", [](std::vector<double> each) { return percentile(std::move(each), 100); }, {});
  report.print("Clients that started before the server: from its start to their first answer");
}

}  // namespace

void add_join(Program& program) {
  const auto clients = program.number("--join-clients", 4, "Processes that wait for the server");
  program.part("join", [=, &program](Report& report) { measure(program.rounds(8), *clients, report); });
}

}  // namespace cohort::benchmarks
