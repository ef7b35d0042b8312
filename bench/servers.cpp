// SPDX-License-Identifier: BSD-3-Clause
#include "servers.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <stdexcept>

#include "common/process.h"
#include "echo.h"
#include "torch_peers.h"

namespace cohort::benchmarks {

namespace {

RunningServer running(Child process) {
  const auto port = process.channel().receive<std::uint16_t>();
  return {std::move(process), port};
}

RunningServer start_store(const StoreServerOptions& options) {
  return running(Child([&options](Channel& parent) {
    const StoreServer server(options);
    parent.send(server.endpoint().port);
    parent.wait_for_end();
  }));
}

Endpoint unix_endpoint() {
  static const pid_t owner = ::getpid();  // of the program, also in its children
  return Endpoint::unix_socket(fmt::format("@cohort-store-bench-{}", owner));
}

}  // namespace

RunningServer start_store(const Secret& secret) {
  return start_store(StoreServerOptions{.endpoint = Endpoint::tcp(loopback, 0), .secret = secret});
}

RunningServer start_store_on_unix_socket() {
  return start_store(StoreServerOptions{.endpoint = unix_endpoint()});
}

RunningServer start_torch_store() {
  return running(Child([](Channel& parent) {
    const auto server = make_torch_store(loopback, 0, true);
    parent.send(server->port());
    parent.wait_for_end();
  }));
}

RunningServer start_echo() {
  return running(Child(serve_echo));
}

TcpStoreOptions client_options(std::uint16_t port, const Secret& secret) {
  return {.endpoint = Endpoint::tcp(loopback, port), .timeout = std::chrono::seconds(60), .secret = secret};
}

TcpStoreOptions unix_client_options() {
  return {.endpoint = unix_endpoint(), .timeout = std::chrono::seconds(60)};
}

ProcessGroupPtr shm_group(int rank, int size) {
  return new_group("shm", std::chrono::seconds(60), "cpu", {},
                   {.store = std::make_shared<TcpStore>(unix_client_options()), .rank = rank, .size = size});
}

std::vector<int> OnCpu::allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

OnCpu::OnCpu(int cpu) {
  ::sched_getaffinity(0, sizeof(before_), &before_);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}

OnCpu::~OnCpu() {
  ::sched_setaffinity(0, sizeof(before_), &before_);
}

void raise_descriptor_limit(std::size_t least) {
  tool::raise_open_files();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < least) {
    throw std::runtime_error(
        fmt::format("{} file descriptors are needed in one process, the limit is {}: raise it with ulimit -Hn", least,
                    limit.rlim_cur));
  }
}

}  // namespace cohort::benchmarks
