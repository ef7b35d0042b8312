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
  std::optional<double> quota{};  ///< how many CPUs' time the cgroup grants; nullopt: no limit

  /// The number of CPUs in the mask or the quota, whichever is smaller; at least 1.
  int count() const;
};

UsableCpus usable_cpus();

/// The tightest limit, in CPUs, of this process's cgroup (v2 or v1) and those above it. `root` stands for "/".
std::optional<double> cgroup_cpu_quota(const std::filesystem::path& root = "/");

}  // namespace cohort
