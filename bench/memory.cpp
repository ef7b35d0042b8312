// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "servers.h"

namespace cohort::bench {

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

}  // namespace

void measure_memory(const MemoryOptions& options, Report& report) {
  constexpr double most = 16;
  raise_descriptor_limit(static_cast<std::size_t>(options.connections) + 100);
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
  for (int i = 0; i < options.connections; ++i) connect();
  const double after = anonymous_memory(server.process.pid());
  report.add({.what = fmt::format("per idle connection, of {}", options.connections),
              .unit = "KiB",
              .ours = (after - before) / options.connections,
              .bar = Bar{Bar::Kind::at_most, most}});
}

}  // namespace cohort::bench
