// SPDX-License-Identifier: BSD-3-Clause
//
// How the CPUs a job may use are shared among the ranks of a host.
#pragma once

#include <sched.h>

#include <vector>

#include "core/cpus.h"

namespace cohort::tool {

using cohort::cgroup_cpu_quota;
using cohort::usable_cpus;
using cohort::UsableCpus;

struct CpuShare {
  int threads = 1;                ///< for OMP_NUM_THREADS
  std::vector<cpu_set_t> bind{};  ///< one set for each local rank; empty: do not bind
};

/// Binds if `may_bind` is set and each rank can have a CPU of its own, but not where a quota grants less time than the
/// mask has CPUs: then the kernel has to be free to choose.
CpuShare share_cpus(const UsableCpus& cpus, int local_size, bool may_bind);

}  // namespace cohort::tool
