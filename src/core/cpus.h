// SPDX-License-Identifier: BSD-3-Clause
//
// The CPUs this process may use.
#pragma once

#include <sched.h>

#include <filesystem>
#include <optional>

namespace cohort {

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

}  // namespace cohort
