// SPDX-License-Identifier: BSD-3-Clause
#include "common/cpu_share.h"

#include <algorithm>
#include <climits>
#include <memory>

#include "common/topology.h"

namespace cohort::tool {

namespace {

struct BitmapFree {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, BitmapFree>;

/// Gives neighbouring CPUs to the same rank and keeps ranks apart. Empty where hwloc cannot read the topology.
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

CpuShare share_cpus(const UsableCpus& cpus, int local_size, bool may_bind) {
  CpuShare share;
  share.threads = std::max(1, cpus.count() / local_size);
  if (may_bind && local_size <= CPU_COUNT(&cpus.mask) && cpus.count() == cpus.in_mask) {
    share.bind = spread(cpus.mask, local_size);
  }
  return share;
}

}  // namespace cohort::tool
