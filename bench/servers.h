// SPDX-License-Identifier: BSD-3-Clause
//
// Servers, each in a process of its own, the options with which clients connect to Cohort's, and ranks beside one.
#pragma once

#include <cohort/new_group.h>
#include <cohort/secret.h>
#include <cohort/tcp_store.h>

#include <sched.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "measure/child.h"
#include "measure/rank_processes.h"

namespace cohort::benchmarks {

using namespace measure;  // what they all measure with

inline constexpr const char* loopback = "127.0.0.1";

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

/// A group of backend shm, of ranks that find each other in the store on the unix socket.
ProcessGroupPtr shm_group(int rank, int size);

/// Ranks in processes of their own, and the store on the unix socket. Each process makes a Rank(rank, size,
/// arguments...), whose answer() is asked.
template <class Rank, class Question, class Reply = Interval>
class ShmRanks {
 public:
  template <class... Arguments>
  explicit ShmRanks(int size, const Arguments&... arguments)
      : server_(start_store_on_unix_socket()), ranks_(size, [&](int rank) {
          auto each = std::make_shared<Rank>(rank, size, arguments...);
          return [each](const Question& question) { return each->answer(question); };
        }) {}

  std::vector<Reply> ask(const Question& question) { return ranks_.ask(question); }

 private:
  RunningServer server_;
  RankProcesses<Question, Reply> ranks_;
};

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

}  // namespace cohort::benchmarks
