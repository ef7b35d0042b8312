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

/// Binds where `may_bind` and every rank gets at least a CPU of its own; not where a quota grants less time than the
/// mask has CPUs, since the kernel then needs the choice.
CpuShare share_cpus(const UsableCpus& cpus, int local_size, bool may_bind);

}  // namespace cohort::tool
