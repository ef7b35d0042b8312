// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks.h"
#include "echo.h"
#include "measure/statistics.h"
#include "servers.h"
#include "torch_store.h"

namespace cohort::bench {

namespace {

enum class Operation { get, add, wait, set_then_get };

constexpr std::array operations{std::pair("get", Operation::get), std::pair("add", Operation::add),
                                std::pair("wait", Operation::wait), std::pair("set then get", Operation::set_then_get)};

void wait_for(TcpStore& store, const std::string& key) {
  store.wait({key});
}
void wait_for(TorchStore& store, const std::string& key) {
  store.wait(key);
}

/// One client's turn; its own key, so that clients do not wait for each other but in the server.
template <class AnyStore>
void perform(AnyStore& store, Operation operation, const std::string& key, const std::string& value) {
  switch (operation) {
    case Operation::get:
      store.get("existing");
      return;
    case Operation::add:
      store.add("counter", 1);
      return;
    case Operation::wait:
      wait_for(store, "existing");
      return;
    case Operation::set_then_get:
      store.set(key, value);
      store.get(key);
      return;
  }
}

void perform(EchoClient& client, Operation, const std::string&, const std::string&) {
  client.round_trip();
}

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
template <class AnyStore>
Figure measure(std::vector<std::unique_ptr<AnyStore>>& clients, const RunningServer& server, Operation operation,
               std::chrono::milliseconds time) {
  const std::string value(64, 'x');
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> done{0};
  std::atomic<bool> failed{false};
  std::barrier ready(static_cast<std::ptrdiff_t>(clients.size()) + 1);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto key = fmt::format("client{}", i);
      std::uint64_t mine = 0;
      ready.arrive_and_wait();
      try {
        for (; !stop.load(std::memory_order_relaxed); ++mine) perform(*clients[i], operation, key, value);
      } catch (const std::exception& e) {
        fmt::print(stderr, "store_bench: {}\n", e.what());
        failed = true;
      }
      done += mine;
    });
  }
  ready.arrive_and_wait();
  const auto start = Clock::now();
  const auto cpu = [&] { return cpu_time(::getpid()) + cpu_time(server.process.pid()); };
  const double cpu_before = cpu();
  std::this_thread::sleep_for(time);
  stop = true;
  threads.clear();
  const double elapsed = seconds_since(start);
  if (failed) throw std::runtime_error("a client failed");
  const auto turns = static_cast<double>(done.load());
  return {turns / elapsed, (cpu() - cpu_before) / turns * 1e6};
}

using TcpStores = std::vector<std::unique_ptr<TcpStore>>;

TcpStores connect(const TcpStoreOptions& options, int count) {
  TcpStores stores;
  for (int i = 0; i < count; ++i) stores.push_back(std::make_unique<TcpStore>(options));
  stores.front()->set("existing", std::string(64, 'x'));
  return stores;
}

struct Series {
  std::vector<double> rates{};
  std::vector<double> cpu{};
  void add(const Figure& figure) {
    rates.push_back(figure.rate);
    cpu.push_back(figure.cpu);
  }
};

/// One operation's figures: over TCP and a secret, over the unix socket, and PyTorch's.
struct Contest {
  Series tcp{};
  Series unix_socket{};
  Series torch{};
};

Row compare(const std::string& what, const Series& ours, const Series& torch) {
  constexpr double least = 2;
  Row row{.what = what, .unit = "/s", .ours = median(ours.rates)};
  row.note = fmt::format("CPU of both sides: {:.1f} us", median(ours.cpu));
  if (torch.rates.empty()) {
    row.note += "; PyTorch's TCPStore skipped: built without libtorch";
    return row;
  }
  row.peer = median(torch.rates);
  row.peer_name = "PyTorch " + TorchStore::version();
  row.ratio = median_ratio(ours.rates, torch.rates);
  row.bar = Bar{Bar::Kind::at_least, least};
  row.note += fmt::format(", PyTorch's {:.1f} us", median(torch.cpu));
  return row;
}

}  // namespace

void measure_throughput(const ThroughputOptions& options, Report& report) {
  const auto secret = Secret::generate();
  // All processes before any thread.
  const auto server = start_store(secret);
  const auto unix_server = start_store_on_unix_socket();
  const auto echo_server = start_echo();
  std::optional<RunningServer> torch_server;
  if (TorchStore::is_available()) torch_server.emplace(start_torch_store());

  auto clients = connect(client_options(server.port, secret), options.clients);
  auto unix_clients = connect(unix_client_options(), options.clients);
  std::vector<std::unique_ptr<TorchStore>> torch_clients;
  std::vector<std::unique_ptr<EchoClient>> echo_clients;
  for (int i = 0; i < options.clients; ++i) {
    echo_clients.push_back(std::make_unique<EchoClient>(echo_server.port, 64));
    if (torch_server) torch_clients.push_back(std::make_unique<TorchStore>(loopback, torch_server->port, false));
  }
  if (torch_server) torch_clients.front()->set("existing", std::string(64, 'x'));

  const std::chrono::milliseconds time(options.milliseconds);
  std::array<Contest, operations.size()> contests;
  Series echo;
  for (int round = 0; round < options.rounds; ++round) {
    echo.add(measure(echo_clients, echo_server, Operation::get, time));
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const auto operation = operations[i].second;
      const auto ours = [&] {
        contests[i].tcp.add(measure(clients, server, operation, time));
        contests[i].unix_socket.add(measure(unix_clients, unix_server, operation, time));
      };
      const auto theirs = [&] {
        if (torch_server) contests[i].torch.add(measure(torch_clients, *torch_server, operation, time));
      };
      // Who goes first changes: a machine that slows down must not always slow down the same one.
      round % 2 == 0 ? (ours(), theirs()) : (theirs(), ours());
    }
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto& [tcp, unix_socket, torch] = contests[i];
    const auto what = fmt::format("{}, {} clients", operations[i].first, options.clients);
    report.add(compare(what + ", TCP", tcp, torch));
    report.add(compare(what + ", unix", unix_socket, torch));
  }
  report.add({.what = fmt::format("bare echo, {} clients, TCP", options.clients),
              .unit = "/s",
              .ours = median(echo.rates),
              .note = fmt::format("CPU of both sides: {:.1f} us; nothing but the system calls", median(echo.cpu))});
}

}  // namespace cohort::bench
