// SPDX-License-Identifier: BSD-3-Clause
//
// The CPUs this job may use, and how they are shared among the ranks of a host.
#pragma once

#include <sched.h>

#include <filesystem>
#include <optional>
#include <vector>

namespace cohort::tool {

struct UsableCpus {
  cpu_set_t mask{};  ///< where the kernel lets this process run
  int in_mask = 1;
  std::optional<double> quota{};  ///< CPUs' worth of time that the cgroup grants, where it limits

  /// The smaller of the two, at least 1.
  int count() const;
};

UsableCpus usable_cpus();

/// The tightest limit of this process's cgroup and the ones above it, v2 or v1, in CPUs. `root` stands for "/".
std::optional<double> cgroup_cpu_quota(const std::filesystem::path& root = "/");

struct CpuShare {
  int threads = 1;                ///< for OMP_NUM_THREADS
  std::vector<cpu_set_t> bind{};  ///< one set for each local rank; empty: do not bind
};

/// Binds where `may_bind` and every rank gets at least a CPU of its own; not where a quota grants less time than the
/// mask has CPUs, since the kernel then needs the choice.
CpuShare share_cpus(const UsableCpus& cpus, int local_size, bool may_bind);

}  // namespace cohort::tool
