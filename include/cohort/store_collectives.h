// SPDX-License-Identifier: BSD-3-Clause
//
// Small collectives over a store, for control data before there is a process group: a few bytes, a few ranks.
//
//   cohort::StoreCollectives all(store, rank, world_size);
//   all.barrier("start");
//   auto hosts = all.all_gather("hosts", my_host_name);
//
// Every call takes a key of its own: using one twice is a ValueError, on the rank that does it. Each takes O(1)
// requests per rank (the root O(1) requests of O(n) keys); nothing polls.
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

  /// ValueError unless 0 <= rank < world_size and there is a store.
  StoreCollectives(StorePtr store, int rank, int world_size);

  /// Returns when all ranks have called it; with `block` false merely announces this rank.
  void barrier(std::string_view key, Within within = default_timeout, bool block = true);
  /// The sum of all ranks' values, on all ranks.
  std::int64_t all_sum(std::string_view key, std::int64_t value, Within within = default_timeout);
  void broadcast_send(std::string_view key, std::string_view value, Within within = default_timeout);
  std::string broadcast_recv(std::string_view key, Within within = default_timeout);
  void gather_send(std::string_view key, std::string_view value, Within within = default_timeout);
  /// On the receiver, whose own value stands at its rank.
  std::vector<std::string> gather_recv(std::string_view key, std::string_view value, Within within = default_timeout);
  /// `values[r]` goes to rank r; one for each rank, the sender's own is returned.
  std::string scatter_send(std::string_view key, const std::vector<std::string>& values,
                           Within within = default_timeout);
  std::string scatter_recv(std::string_view key, Within within = default_timeout);
  std::vector<std::string> all_gather(std::string_view key, std::string_view value, Within within = default_timeout);

 private:
  /// The key for one use, refused the second time.
  std::string use(std::string_view key);
  /// After everyone has announced itself under `key`, names who has not in the error.
  void wait_for_all(const std::string& key, Deadline deadline);
  std::vector<std::string> keys_of_all(const std::string& key) const;

  StorePtr store_;
  int rank_;
  int world_size_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace cohort
