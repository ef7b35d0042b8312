// SPDX-License-Identifier: BSD-3-Clause
//
// Small collectives over a store, for control data before there is a process group: a few bytes, a few ranks.
//
//   cohort::StoreCollectives all(store, rank, world_size);
//   all.barrier("start");
//   auto hosts = all.all_gather("hosts", my_host_name);
//
// Every call needs a key of its own; a rank that uses one twice gets a ValueError. A rank makes a constant number of
// store requests in each call (the receiver of a gather one for all n keys), and nothing polls.
#pragma once

#include <cohort/store.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

class COHORT_API StoreCollectives {
 public:
  static constexpr std::chrono::milliseconds default_timeout{300'000};

  /// Throws ValueError unless 0 <= rank < world_size and the store is not null.
  StoreCollectives(StorePtr store, int rank, int world_size);

  /// Returns when all ranks have called it. With `block` false it only records that this rank has arrived.
  void barrier(std::string_view key, Timeout timeout = default_timeout, bool block = true);
  /// Returns the sum of all ranks' values on all ranks.
  std::int64_t all_sum(std::string_view key, std::int64_t value, Timeout timeout = default_timeout);
  void broadcast_send(std::string_view key, std::string_view value, Timeout timeout = default_timeout);
  std::string broadcast_recv(std::string_view key, Timeout timeout = default_timeout);
  void gather_send(std::string_view key, std::string_view value, Timeout timeout = default_timeout);
  /// Called on the receiver with its own value. Returns the values of all ranks in rank order.
  std::vector<std::string> gather_recv(std::string_view key, std::string_view value, Timeout timeout = default_timeout);
  /// Sends `values[r]` to rank r, one value for each rank, and returns the sender's own.
  std::string scatter_send(std::string_view key, const std::vector<std::string>& values,
                           Timeout timeout = default_timeout);
  std::string scatter_recv(std::string_view key, Timeout timeout = default_timeout);
  std::vector<std::string> all_gather(std::string_view key, std::string_view value, Timeout timeout = default_timeout);

 private:
  /// Returns the key; throws ValueError if it was used before.
  std::string use(std::string_view key);
  /// Records that this rank has arrived, and opens the gate if it is the last.
  void arrive(const std::string& key, Deadline deadline);
  /// Arrives and waits for all other ranks; the error names those that are missing.
  void wait_for_all(const std::string& key, Deadline deadline);
  std::string key_of_rank(std::string_view key, int rank) const;
  std::vector<std::string> keys_of_all(std::string_view key) const;

  StorePtr store_;
  int rank_;
  int world_size_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace cohort
