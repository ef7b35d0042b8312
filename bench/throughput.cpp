// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks.h"
#include "echo.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "servers.h"
#include "torch_peers.h"

namespace cohort::benchmarks {

namespace {

constexpr std::array operations{"get", "add", "wait", "set then get"};

/// What a client does in its turn, for each operation.
using Calls = std::array<std::function<void()>, operations.size()>;

/// Each client has a key of its own, so that clients do not wait for each other but in the server.
template <class Store>
Calls calls_of(std::shared_ptr<Store> store, int client) {
  const std::string value(64, 'x');
  if (client == 0) store->set("existing", value);
  return {[=] { store->get("existing"); }, [=] { store->add("counter", 1); }, [=] { store->wait({"existing"}); },
          [=, key = fmt::format("client{}", client)] {
            store->set(key, value);
            store->get(key);
          }};
}

Calls echoes(std::uint16_t port) {
  const auto client = std::make_shared<EchoClient>(port, 64);
  return {[client] { client->round_trip(); }};
}

/// A server and its clients.
struct Contestant {
  std::string name;
  const RunningServer& server;
  std::vector<Calls> clients;
};

struct Figure {
  double rate;  ///< turns per second of all clients together
  double cpu;   ///< microseconds that both sides computed for a turn, which other programs hardly disturb
};

double cpu_time(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &time) != 0) {
    throw std::runtime_error("no CPU clock of a process");
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Each client on a thread and a connection of its own.
Figure measure_once(const Contestant& contestant, std::size_t operation) {
  const auto& clients = contestant.clients;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> done{0};
  std::atomic<bool> failed{false};
  std::barrier ready(static_cast<std::ptrdiff_t>(clients.size()) + 1);
  std::vector<std::jthread> threads;
  for (const auto& client : clients) {
    threads.emplace_back([&] {
      const auto& turn = client.at(operation);
      std::uint64_t mine = 0;
      ready.arrive_and_wait();
      try {
        for (; !stop.load(std::memory_order_relaxed); ++mine) turn();
      } catch (const std::exception& e) {
        fmt::print(stderr, "store_bench: {}\n", e.what());
        failed = true;
      }
      done += mine;
    });
  }
  ready.arrive_and_wait();
  const auto start = Clock::now();
  const auto cpu = [&] { return cpu_time(::getpid()) + cpu_time(contestant.server.process.pid()); };
  const double cpu_before = cpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  stop = true;
  threads.clear();
  const double elapsed = seconds_since(start);
  if (failed) throw std::runtime_error("a client failed");
  const auto turns = static_cast<double>(done.load());
  return {turns / elapsed, (cpu() - cpu_before) / turns * 1e6};
}

/// The figures of one operation of one contestant.
struct Series {
  const Contestant* contestant;
  std::size_t operation;
  std::vector<double> rates{};
  std::vector<double> cpu{};
};

void measure(int rounds, int count, Report& report) {
  const auto secret = Secret::generate();
  // All processes before any thread.
  const auto server = start_store(secret);
  const auto unix_server = start_store_on_unix_socket();
  const auto echo_server = start_echo();
  std::optional<RunningServer> torch_server;
  if (!torch_version.empty()) torch_server.emplace(start_torch_store());

  Contestant tcp{"TCP", server, {}};
  Contestant unix_socket{"unix", unix_server, {}};
  Contestant echo{"bare echo", echo_server, {}};
  Contestant torch{"PyTorch " + torch_version, torch_server ? *torch_server : server, {}};
  for (int i = 0; i < count; ++i) {
    tcp.clients.push_back(calls_of(std::make_shared<TcpStore>(client_options(server.port, secret)), i));
    unix_socket.clients.push_back(calls_of(std::make_shared<TcpStore>(unix_client_options()), i));
    echo.clients.push_back(echoes(echo_server.port));
    if (!torch_server) continue;
    torch.clients.push_back(
        calls_of(std::shared_ptr<TorchStore>(make_torch_store(loopback, torch_server->port, false)), i));
  }
  std::vector<Series> all;
  for (std::size_t operation = 0; operation < operations.size(); ++operation) {
    for (const auto* const each : {&tcp, &unix_socket, &torch}) {
      if (!each->clients.empty()) all.push_back({each, operation});
    }
  }
  all.push_back({&echo, 0});
  const auto rates = take_turns(all.size(), rounds, [&](std::size_t which) {
    const auto figure = measure_once(*all[which].contestant, all[which].operation);
    all[which].cpu.push_back(figure.cpu);
    return figure.rate;
  });
  for (std::size_t i = 0; i < all.size(); ++i) all[i].rates = rates[i];

  for (const auto& ours : all) {
    if (ours.contestant == &torch) continue;
    Row row{.what = fmt::format("{}, {} clients, {}", operations.at(ours.operation), count, ours.contestant->name),
            .unit = "/s",
            .ours = median(ours.rates),
            .note = fmt::format("CPU of both sides: {:.1f} us", median(ours.cpu))};
    const auto peer = std::find_if(all.begin(), all.end(), [&](const Series& each) {
      return each.contestant == &torch && each.operation == ours.operation;
    });
    if (ours.contestant == &echo) {
      row.what = fmt::format("bare echo, {} clients, TCP", count);
      row.note += "; nothing but the system calls";
    } else if (peer != all.end()) {
      row.peer = median(peer->rates);
      row.peer_name = torch.name;
      row.ratio = median_ratio(ours.rates, peer->rates);
      row.bar = at_least(2);
      row.note += fmt::format(", PyTorch's {:.1f} us", median(peer->cpu));
    }
    report.add(row);
  }
  report.print("Operations per second, values of 64 bytes");
}

}  // namespace

void add_throughput(Program& program) {
  const auto clients = program.number("--throughput-clients", 16, "Clients, each a thread with a connection");
  program.part("throughput", [=, &program](Report& report) { measure(program.rounds(9), *clients, report); });
}

}  // namespace cohort::benchmarks
