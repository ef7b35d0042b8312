// SPDX-License-Identifier: BSD-3-Clause
//
// Which ranks share a host.
#pragma once

#include <cohort/deadline.h>
#include <cohort/env.h>
#include <cohort/store.h>

#include <string>
#include <vector>

#include "core/rank_index.h"

namespace cohort::hybrid {

/// Hosts are in the order of their lowest ranks, the ranks of a host are ascending, and every rank is on exactly one
/// host.
class Placement {
 public:
  Placement() = default;
  /// `names[r]` is the host of rank r.
  Placement(const std::vector<std::string>& names, int rank);
  explicit Placement(std::vector<std::vector<int>> hosts, int rank);

  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  /// The ranks of this host.
  const std::vector<int>& here() const { return hosts_[host_]; }
  std::size_t host() const { return host_; }
  /// The index of this rank among the ranks of its host.
  int local_rank() const { return local_rank_; }
  std::size_t host_of(int rank) const { return host_of_[index_of(rank)]; }
  int local_rank_of(int rank) const { return local_rank_of_[index_of(rank)]; }
  bool is_here(int rank) const { return host_of(rank) == host_; }
  int size() const { return static_cast<int>(host_of_.size()); }
  /// The number of ranks on the host that has the fewest; every host has as many leaders.
  int fewest() const;

  /// The placement of a subgroup whose rank i is rank ranks[i] here. `rank` is this process's rank in the subgroup.
  Placement among(const std::vector<int>& ranks, int rank) const;

  bool operator==(const Placement&) const = default;

 private:
  void index(int rank);

  std::vector<std::vector<int>> hosts_;
  std::size_t host_ = 0;
  int local_rank_ = 0;
  std::vector<std::size_t> host_of_;
  std::vector<int> local_rank_of_;
};

/// Names the host for ranks that may share memory: the kernel's boot id, the user and the network namespace (which
/// abstract sockets belong to), or COHORT_HOST_ID. Whether ranks with equal names share memory is confirmed by a
/// mapping later; nothing is guessed from LOCAL_WORLD_SIZE.
std::string host_name_of_this_process(const Env& env);

/// "2 hosts: 0-3 | 4-7"
std::string to_string(const Placement& placement);

}  // namespace cohort::hybrid
