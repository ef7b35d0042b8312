// SPDX-License-Identifier: BSD-3-Clause
//
// The same body as the ranks of a group, on threads (which ThreadSanitizer sees) and in processes (which can be
// killed).
#pragma once

#include <cohort/hash_store.h>
#include <cohort/new_group.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

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
                                      std::chrono::milliseconds timeout = patient) {
  return new_group("shm", timeout, "cpu", {}, {.store = store.open(rank), .rank = rank, .size = size});
}

inline void with_processes(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
  const ProcessStore store;
  as_processes(size, [&](int rank) {
    const auto group = join_processes(store, rank, size, timeout);
    body(group);
    group->barrier();  // rank 0's store stays until all are through
    return 0;
  });
}

/// How the ranks of a test run. ThreadSanitizer does not see processes, and does not like many forks.
struct Ranks {
  bool are_processes = false;
  int size = 1;

  void run(const GroupBody& body, std::chrono::milliseconds timeout = patient) const {
    are_processes ? with_processes(size, body, timeout) : with_threads(size, body, timeout);
  }
  friend std::string to_string(const Ranks& ranks) {
    return (ranks.are_processes ? "Processes" : "Threads") + std::to_string(ranks.size);
  }
  /// ctest shows it beside a test's name.
  friend void PrintTo(const Ranks& ranks, std::ostream* out) { *out << to_string(ranks); }
};

}  // namespace cohort::test
