// SPDX-License-Identifier: BSD-3-Clause
//
// Runs the same body as the ranks of a group, in threads (which ThreadSanitizer can check) and in processes (which can
// be killed).
#pragma once

#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/prefix_store.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {

inline constexpr std::chrono::seconds patient{60};

using GroupBody = std::function<void(const ProcessGroupPtr&)>;

inline void with_threads(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
  const auto store = std::make_shared<HashStore>();
  as_threads(size, [&](int rank) {
    body(new_group("thread", timeout, "cpu", {}, {.store = store, .rank = rank, .size = size}));
  });
}

/// One store for all the processes of a test, hosted by rank 0.
class ProcessStore {
 public:
  StorePtr open(int rank) const {
    return std::make_shared<TcpStore>(
        TcpStoreOptions{.endpoint = endpoint_, .is_host = rank == 0, .timeout = std::chrono::seconds(60)});
  }

 private:
  Endpoint endpoint_ = unique_unix_endpoint();
};

inline ProcessGroupPtr join_processes(const ProcessStore& store, int rank, int size,
                                      std::chrono::milliseconds timeout = patient, const std::string& backend = "shm") {
  return new_group(backend, timeout, "cpu", {}, {.store = store.open(rank), .rank = rank, .size = size});
}

/// Makes this process believe that there are this many hosts, with the first ranks on the first host; 0: the real host
/// only.
inline void name_host(int rank, int size, int hosts) {
  if (hosts > 0) ::setenv("COHORT_HOST_ID", ("host" + std::to_string(rank * hosts / size)).c_str(), 1);
}

inline void with_processes(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient,
                           const std::string& backend = "shm", int hosts = 0) {
  const ProcessStore store;
  as_processes(size, [&](int rank) {
    name_host(rank, size, hosts);
    const auto group = join_processes(store, rank, size, timeout, backend);
    body(group);
    group->barrier();  // rank 0 hosts the store until all ranks are done
    return 0;
  });
}

/// Runs the body as one rank of a job that a launcher has started (mpirun, srun, cohort run --nnodes).
inline void with_launched(const GroupBody& body, std::chrono::milliseconds timeout, const std::string& backend) {
  const auto group = new_group(backend, timeout, "cpu");
  body(group);
  group->barrier();
}

/// The same for the first `size` ranks of that job; the others go on to what comes next. All of them call this in the
/// same order. The store is that of a group of all ranks, which lasts as long as the process, so `body` may break the
/// group that it gets. Groups are kept, because MPICH may give a message that nobody received to a later group
/// (docs/engines-mpi.md).
inline void with_some_of_the_launched(int size, const GroupBody& body, std::chrono::milliseconds timeout,
                                      const std::string& backend) {
  static const auto all = new_group(backend, patient, "cpu");
  static int runs = 0;
  const auto store = std::make_shared<PrefixStore>("run" + std::to_string(runs++), all->store()->clone());
  static std::vector<ProcessGroupPtr> kept;
  if (all->rank() < size) {
    kept.push_back(new_group(backend, timeout, "cpu", {}, {.store = store, .rank = all->rank(), .size = size}));
    body(kept.back());
  }
}

/// How the ranks of a test run. ThreadSanitizer cannot check several processes, and has problems with many forks.
struct Ranks {
  enum class Are { threads, processes, launched };

  Are are = Are::threads;
  int size = 1;
  std::string backend = "shm";  ///< for processes
  int hosts = 0;
  bool is_part_of_a_job = false;  ///< of launched ranks, the first `size` only

  bool are_processes() const { return are == Are::processes; }
  void run(const GroupBody& body, std::chrono::milliseconds timeout = patient) const {
    switch (are) {
      case Are::threads:
        return with_threads(size, body, timeout);
      case Are::processes:
        return with_processes(size, body, timeout, backend, hosts);
      case Are::launched:
        if (is_part_of_a_job) return with_some_of_the_launched(size, body, timeout, backend);
        return with_launched(body, timeout, backend);
    }
  }
  friend std::string to_string(const Ranks& ranks) {
    if (ranks.are == Are::threads) return "Threads" + std::to_string(ranks.size);
    const auto number = std::to_string(ranks.size) + (ranks.hosts > 0 ? "On" + std::to_string(ranks.hosts) : "");
    return (ranks.backend == "shm" ? "" : ranks.backend) + (ranks.are == Are::processes ? "Processes" : "Launched") +
           number;
  }
  /// ctest shows this text beside the name of a test.
  friend void PrintTo(const Ranks& ranks, std::ostream* out) { *out << to_string(ranks); }
};

/// COHORT_TEST_BACKEND=gloo, or =launched:mpi for one rank of a job that is already running (with COHORT_TEST_SIZE
/// ranks), makes the tests the conformance suite of that backend (tests/conformance). Without it, they run on threads
/// and shm.
inline constexpr std::string_view launched = "launched:";
inline std::string test_backend_variable() {
  const char* const name = std::getenv("COHORT_TEST_BACKEND");
  return name == nullptr ? "" : name;
}
inline bool is_launched() {
  return test_backend_variable().starts_with(launched);
}
/// The backend under test; empty: threads and shm.
inline std::string backend_under_test() {
  return test_backend_variable().substr(is_launched() ? launched.size() : 0);
}
/// Whether the ranks of one host share memory on the backend under test.
inline bool is_over_shared_memory() {
  const auto backend = backend_under_test();
  return backend.empty() || backend == "shm" || backend == "hybrid" || backend == "auto";
}
inline int launched_size() {
  const char* const size = std::getenv("COHORT_TEST_SIZE");
  return size == nullptr ? 1 : std::atoi(size);
}

inline Ranks threads(int size) {
  return {.are = Ranks::Are::threads, .size = size};
}
inline Ranks processes(int size) {
  return {.are = Ranks::Are::processes, .size = size};
}

/// Returns these arrangements, or as many ranks of the backend under test. Only mpi needs a launcher for them; of the
/// other launched backends the operations are tested (arrangements.h).
inline std::vector<Ranks> on_backends(std::vector<Ranks> usual) {
  const auto backend = backend_under_test();
  if (backend.empty()) return usual;
  std::vector<Ranks> others;
  for (auto& each : usual) {
    if (!each.are_processes()) continue;
    if (is_launched() && (backend != "mpi" || each.size > launched_size())) continue;
    each.backend = backend;
    if (backend == "hybrid") each.hosts = 2;
    if (is_launched()) {
      each.are = Ranks::Are::launched;
      each.is_part_of_a_job = true;
    }
    others.push_back(each);
  }
  return others;
}

}  // namespace cohort::test
