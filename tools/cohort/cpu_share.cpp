// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_share.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <memory>
#include <string>

#include "core/parse.h"

namespace cohort::tool {

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

class Topology {
 public:
  explicit Topology(hwloc_const_cpuset_t allowed) {
    // Cores, packages and NUMA nodes are all it takes to spread ranks; looking for the rest takes far longer.
    is_loaded_ = hwloc_topology_init(&topology_) == 0 &&
                 hwloc_topology_set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
                 hwloc_topology_set_type_filter(topology_, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
                 hwloc_topology_set_type_filter(topology_, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
                 hwloc_topology_load(topology_) == 0 && hwloc_topology_restrict(topology_, allowed, 0) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  bool is_loaded() const { return is_loaded_; }
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool is_loaded_ = false;
};

struct BitmapFree {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, BitmapFree>;

/// Near CPUs to the same rank, ranks far from each other. Empty where the machine cannot be read.
std::vector<cpu_set_t> spread(const cpu_set_t& mask, int local_size) {
  const Bitmap allowed(hwloc_bitmap_alloc());
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) hwloc_bitmap_set(allowed.get(), cpu);
  }
  const Topology topology(allowed.get());
  if (!topology.is_loaded()) return {};
  std::vector<hwloc_cpuset_t> sets(static_cast<std::size_t>(local_size));
  auto* root = hwloc_get_root_obj(topology.get());
  if (hwloc_distrib(topology.get(), &root, 1, sets.data(), static_cast<unsigned>(local_size), INT_MAX, 0) != 0) {
    return {};
  }
  std::vector<cpu_set_t> result;
  for (auto* const set : sets) {
    const Bitmap owned(set);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int cpu = hwloc_bitmap_first(set); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(set, cpu)) {
      CPU_SET(static_cast<unsigned>(cpu), &cpus);
    }
    result.push_back(cpus);
  }
  return result;
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

CpuShare share_cpus(const UsableCpus& cpus, int local_size, bool may_bind) {
  CpuShare share;
  share.threads = std::max(1, cpus.count() / local_size);
  if (may_bind && local_size <= CPU_COUNT(&cpus.mask) && cpus.count() == cpus.in_mask) {
    share.bind = spread(cpus.mask, local_size);
  }
  return share;
}

}  // namespace cohort::tool
