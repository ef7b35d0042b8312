// SPDX-License-Identifier: BSD-3-Clause
//
// Processors, memory and limits, as the kernel and hwloc report them.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "common/cpu_share.h"
#include "common/topology.h"
#include "core/parse.h"
#include "doctor/report.h"

namespace cohort::tool {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// /proc/meminfo: sizes in bytes, counts as they are.
std::map<std::string, std::uint64_t> read_meminfo() {
  std::map<std::string, std::uint64_t> values;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {  // "MemTotal:       16315952 kB"
    const auto colon = line.find(':');
    const auto digits = line.find_first_of("0123456789", colon);
    if (colon == std::string::npos || digits == std::string::npos) continue;
    const auto end = line.find_first_not_of("0123456789", digits);
    const auto value = parse_integer<std::uint64_t>(std::string_view(line).substr(digits, end - digits));
    if (value) values[line.substr(0, colon)] = line.ends_with(" kB") ? *value * 1024 : *value;
  }
  return values;
}

/// The tightest limit of this process's cgroup and those above it, in cgroup v2 or the memory hierarchy of v1.
std::optional<std::uint64_t> cgroup_memory_limit(std::uint64_t total) {
  std::optional<std::uint64_t> limit;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "9:memory:/path"
    const auto controllers = line.find(':') + 1;
    const auto path = line.find(':', controllers) + 1;
    if (controllers == 0 || path == 0) continue;
    const auto names = line.substr(controllers, path - 1 - controllers);
    const bool v2 = names.empty();
    if (!v2 && names != "memory") continue;
    const fs::path mount = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (fs::path group(line.substr(path));; group = group.parent_path()) {
      const auto text = first_line(mount / group.relative_path() / (v2 ? "memory.max" : "memory.limit_in_bytes"));
      // v1 writes a huge number where there is no limit.
      if (const auto bytes = parse_integer<std::uint64_t>(text); bytes && *bytes < total) {
        limit = std::min(limit.value_or(*bytes), *bytes);
      }
      if (!group.has_relative_path()) break;
    }
  }
  return limit;
}

std::optional<std::uint64_t> limit_of(rlim_t value) {
  return value == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(value);
}

/// "always [madvise] never" → "madvise"
std::string chosen(const std::string& line) {
  const auto begin = line.find('[');
  const auto end = line.find(']');
  return begin == std::string::npos || end == std::string::npos ? std::string()
                                                                : line.substr(begin + 1, end - begin - 1);
}

}  // namespace

CpuReport examine_cpu() {
  const auto usable = usable_cpus();
  const Topology topology;
  return {
      .online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
      .in_affinity_mask = usable.in_mask,
      .cgroup_quota = usable.quota,
      .usable = usable.count(),
      .cores = topology.count(HWLOC_OBJ_CORE),
      .sockets = topology.count(HWLOC_OBJ_PACKAGE),
      .numa_nodes = topology.count(HWLOC_OBJ_NUMANODE),
  };
}

MemoryReport examine_memory() {
  MemoryReport report;
  const auto meminfo = read_meminfo();
  const auto get = [&](const char* key) -> std::optional<std::uint64_t> {
    const auto it = meminfo.find(key);
    return it == meminfo.end() ? std::nullopt : std::optional(it->second);
  };
  report.total = get("MemTotal");
  report.available = get("MemAvailable");
  report.huge_page_size = get("Hugepagesize");
  report.huge_pages = get("HugePages_Total").value_or(0);
  report.huge_pages_free = get("HugePages_Free").value_or(0);
  if (report.total) report.cgroup_limit = cgroup_memory_limit(*report.total);
  report.transparent_huge_pages = chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0) report.locked_limit = limit_of(locked.rlim_cur);
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    report.dev_shm_size = static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize;
    report.dev_shm_free = static_cast<std::uint64_t>(shm.f_bavail) * shm.f_frsize;
  }
  return report;
}

LimitReport examine_limits() {
  LimitReport report;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    report.open_files = limit_of(files.rlim_cur);
    report.open_files_hard = limit_of(files.rlim_max);
  }
  report.ptrace_scope = parse_integer<int>(first_line("/proc/sys/kernel/yama/ptrace_scope"));
  return report;
}

}  // namespace cohort::tool
