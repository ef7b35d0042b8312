// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks.h"
#include "common/free_port.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "servers.h"
#include "torch_store.h"

namespace cohort::bench {

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

}  // namespace

void measure_join(const JoinOptions& options, Report& report) {
  constexpr double most = 20;
  const auto secret = Secret::generate();
  const Kind ours{[&](std::uint16_t port) { TcpStore(client_options(port, secret)).add("joined", 1); },
                  [&](std::uint16_t port) {
                    return std::make_shared<StoreServer>(
                        StoreServerOptions{.endpoint = Endpoint::tcp(loopback, port), .secret = secret});
                  }};
  const Kind torch{[](std::uint16_t port) { TorchStore(loopback, port, false).add("joined", 1); },
                   [](std::uint16_t port) { return std::make_shared<TorchStore>(loopback, port, true); }};
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> head_start(100, 600);
  const std::size_t contestants = TorchStore::is_available() ? 2 : 1;
  // Each round's last client.
  const auto lasts = take_turns(contestants, options.rounds, [&](std::size_t contestant) {
    return join_once(contestant == 0 ? ours : torch, options.clients, std::chrono::milliseconds(head_start(random)));
  });
  const auto largest = [](const std::vector<double>& values) {
    return *std::max_element(values.begin(), values.end());
  };
  Row usual{.what = fmt::format("last of {} clients, median", options.clients), .unit = "ms"};
  usual.ours = median(lasts[0]);
  usual.bar = Bar{Bar::Kind::at_most, most};
  Row worst{.what = fmt::format("last of {} clients, worst round", options.clients), .unit = "ms"};
  worst.ours = largest(lasts[0]);
  if (contestants == 1) {
    usual.note = "PyTorch's TCPStore skipped: built without libtorch";
  } else {
    usual.peer = median(lasts[1]);
    worst.peer = largest(lasts[1]);
    usual.peer_name = worst.peer_name = "PyTorch " + TorchStore::version();
  }
  report.add(usual);
  report.add(worst);
}

}  // namespace cohort::bench
