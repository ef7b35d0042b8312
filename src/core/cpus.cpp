// SPDX-License-Identifier: BSD-3-Clause
#include "core/cpus.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <string>

#include "core/parse.h"

namespace cohort {

namespace {

namespace fs = std::filesystem;

void tighten(std::optional<double>& limit, double quota, double period) {
  if (quota > 0 && period > 0) limit = std::min(limit.value_or(quota / period), quota / period);
}

/// `group` and everything above it, within `mount`.
template <class Read>
void for_each_level(const fs::path& mount, const fs::path& group, Read&& read) {
  for (auto level = group;; level = level.parent_path()) {
    read(mount / level.relative_path());
    if (!level.has_relative_path()) return;
  }
}

void read_v2(const fs::path& folder, std::optional<double>& limit) {
  std::ifstream file(folder / "cpu.max");
  std::string quota;  // "max": no limit
  double period = 0;
  if (!(file >> quota >> period)) return;
  if (const auto microseconds = parse_integer<long>(quota)) tighten(limit, static_cast<double>(*microseconds), period);
}

void read_v1(const fs::path& folder, std::optional<double>& limit) {
  double quota = 0;  // -1: no limit
  double period = 0;
  std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
  std::ifstream(folder / "cpu.cfs_period_us") >> period;
  tighten(limit, quota, period);
}

}  // namespace

int UsableCpus::count() const {
  const int granted = quota ? static_cast<int>(std::min(*quota, double{INT_MAX})) : INT_MAX;
  return std::max(1, std::min(in_mask, granted));
}

std::optional<double> cgroup_cpu_quota(const fs::path& root) {
  std::optional<double> limit;
  const auto mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // 0::/path (v2) or 4:cpu,cpuacct:/path (v1)
    const auto parts = split(line, ':');
    if (parts.size() < 3) continue;
    const fs::path group(line.substr(parts[0].size() + parts[1].size() + 2));
    if (parts[1].empty()) {
      for_each_level(mount, group, [&](const fs::path& folder) { read_v2(folder, limit); });
      continue;
    }
    const auto controllers = split(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "cpu") == controllers.end()) continue;
    for_each_level(mount / parts[1], group, [&](const fs::path& folder) { read_v1(folder, limit); });
  }
  return limit;
}

UsableCpus usable_cpus() {
  UsableCpus cpus;
  if (::sched_getaffinity(0, sizeof(cpus.mask), &cpus.mask) == 0) {
    cpus.in_mask = CPU_COUNT(&cpus.mask);
  } else {  // more CPUs than a cpu_set_t holds
    CPU_ZERO(&cpus.mask);
    cpus.in_mask = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  }
  cpus.quota = cgroup_cpu_quota();
  return cpus;
}

}  // namespace cohort
