// SPDX-License-Identifier: BSD-3-Clause
//
// Servers, each in a process of its own, and the options with which clients connect to Cohort's.
#pragma once

#include <cohort/secret.h>
#include <cohort/tcp_store.h>

#include <sched.h>

#include <cstdint>
#include <vector>

#include "measure/child.h"
#include "measure/rank_processes.h"

namespace cohort::bench {

inline constexpr const char* loopback = "127.0.0.1";

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct RunningServer {
  Child process;
  std::uint16_t port;
};

/// A store over TCP with a secret, as between hosts.
RunningServer start_store(const Secret& secret);
/// A store on the unix socket that the processes of a host use by default, where the kernel tells who connects.
RunningServer start_store_on_unix_socket();
RunningServer start_torch_store();
RunningServer start_echo();

TcpStoreOptions client_options(std::uint16_t port, const Secret& secret);
TcpStoreOptions unix_client_options();

/// Runs this process, and those it forks, on one CPU while it exists.
class OnCpu {
 public:
  /// The CPUs this process may use.
  static std::vector<int> allowed();

  explicit OnCpu(int cpu);
  ~OnCpu();
  OnCpu(const OnCpu&) = delete;
  OnCpu& operator=(const OnCpu&) = delete;

 private:
  cpu_set_t before_{};
};

/// Raises the limit on open files as far as permitted; throws an error if that is less than `least`.
void raise_descriptor_limit(std::size_t least);

}  // namespace cohort::bench
