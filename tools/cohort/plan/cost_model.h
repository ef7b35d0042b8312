// SPDX-License-Identifier: BSD-3-Clause
//
// What a collective takes on a cluster, by the formulas of
//
//   R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", International
//   Journal of High Performance Computing Applications 19(1), 2005;
//   E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and experience",
//   Concurrency and Computation: Practice and Experience 19(13), 2007.
//
// The arithmetic of reductions is not counted by itself: a measured beta contains it.
//
// A group of several ranks on each of several hosts communicates in levels, as the backend hybrid and NCCL do: inside
// the host, between hosts, inside the host again. The ranks of a host share its link, so if r instances of a group have
// a member each on a host (the data-parallel groups of a model that is split inside hosts), each has an r-th of the
// bandwidth.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/cluster.h"

namespace cohort::plan {

/// Where the members of a group are.
struct Placement {
  int per_host = 1;  ///< members on one host
  int hosts = 1;     ///< hosts with members
  int sharing = 1;   ///< instances of the group that use the link of one host
  int ranks() const { return per_host * hosts; }
};

/// `stride` is the distance between neighbours in a group of `ranks`, as ranks of the job; hosts are filled in rank order.
Placement place(int ranks, int stride, const Cluster& cluster);

/// Seconds. `operation` is as groups name it (op_type.h); `bytes` as graphs count them: of a rank's input and output
/// the larger. One rank costs nothing. An operation that is not known is taken for an all_to_all, which moves most.
double cost(std::string_view operation, std::size_t bytes, const Placement& placement, const Cluster& cluster);

/// On one kind of link.
double cost_on_link(std::string_view operation, double bytes, int ranks, const Link& link, Algorithm algorithm);

struct Sample {
  std::string operation;
  std::size_t bytes = 0;
  double seconds = 0;
};
/// The link whose costs are nearest to the samples, all of the same number of ranks (at least 2), by relative error.
Link fit_link(const std::vector<Sample>& samples, int ranks, Algorithm algorithm);

}  // namespace cohort::plan
