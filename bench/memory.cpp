// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

/// Anonymous memory that a process has touched, in KiB: heap and stacks, not files and not the kernel's buffers.
double anonymous_memory(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/smaps_rollup", pid));
  std::string word;
  while (in >> word) {
    double kib = 0;
    if (word == "Anonymous:" && in >> kib) return kib;
  }
  throw std::runtime_error("no smaps_rollup: the kernel does not say what memory a process has");
}

void measure(int connections, Report& report) {
  raise_descriptor_limit(static_cast<std::size_t>(connections) + 100);
  const auto secret = Secret::generate();
  const auto server = start_store(secret);
  const auto client = client_options(server.port, secret);
  std::vector<std::unique_ptr<TcpStore>> stores;
  const auto connect = [&] {
    stores.push_back(std::make_unique<TcpStore>(client));
    // Idle, but used once: what a request leaves behind counts.
    stores.back()->set("key", std::string(64, 'x'));
  };
  for (int i = 0; i < 16; ++i) connect();  // what the first connections allocate once is not per connection
  const double before = anonymous_memory(server.process.pid());
  for (int i = 0; i < connections; ++i) connect();
  const double after = anonymous_memory(server.process.pid());
  report.add({.what = fmt::format("per idle connection, of {}", connections),
              .unit = "KiB",
              .ours = (after - before) / connections,
              .bar = at_most(16)});
  report.print("Memory of the server (secret, no TLS)");
}

}  // namespace

void add_memory(Program& program) {
  const auto connections = program.number("--memory-connections", 4000, "Idle connections");
  program.part("memory", [=](Report& report) { measure(*connections, report); });
}

}  // namespace cohort::benchmarks
