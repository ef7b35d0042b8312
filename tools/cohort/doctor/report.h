// SPDX-License-Identifier: BSD-3-Clause
//
// What `cohort doctor` knows about this build, this host and this process, before anything is printed. Field names are
// the keys of its JSON.
#pragma once

#include <cohort/env.h>
#include <cohort/launch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort::tool {

struct Versions {
  std::string cohort{};
  std::string compiler{};
  std::string openssl{};  ///< the one that is loaded
  std::string hwloc{};
  std::string libc{};
  std::string kernel{};
  std::string system{};  ///< the distribution's name
};

struct BackendState {
  std::string name{};
  bool built_in = false;
  std::string hint{};  ///< how to get it, where it is not built in
};

/// What backend auto would choose: a backend, or "none: " and the reason.
struct AutoReport {
  std::string one_host{};
  std::string several_hosts{};
  std::string cuda{};
};

struct CpuReport {
  int online = 0;
  int in_affinity_mask = 0;
  std::optional<double> cgroup_quota{};
  int usable = 1;
  int cores = 0;
  int sockets = 0;
  int numa_nodes = 0;
};

/// In bytes; nullopt where the value is unknown or there is no limit.
struct MemoryReport {
  std::optional<std::uint64_t> total{};
  std::optional<std::uint64_t> available{};
  std::optional<std::uint64_t> cgroup_limit{};
  std::optional<std::uint64_t> locked_limit{};
  std::optional<std::uint64_t> dev_shm_size{};
  std::optional<std::uint64_t> dev_shm_free{};
  std::optional<std::uint64_t> huge_page_size{};
  std::uint64_t huge_pages = 0;
  std::uint64_t huge_pages_free = 0;
  std::string transparent_huge_pages{};  ///< "always", "madvise", "never"
};

struct LimitReport {
  std::optional<std::uint64_t> open_files{};
  std::optional<std::uint64_t> open_files_hard{};
  std::optional<int> ptrace_scope{};
};

struct InterfaceReport {
  std::string name{};
  bool up = false;
  bool loopback = false;
  std::vector<std::string> addresses{};
};

struct Gpu {
  std::string pci{};
  std::string model{};
};

struct GpuReport {
  std::vector<Gpu> gpus{};
  int device_files = 0;
  std::string driver{};
  bool libcuda = false;
};

struct HostName {
  std::string name{};
  bool resolves = false;
};

struct LaunchReport {
  std::optional<Launch> found{};
  std::string error{};  ///< what is wrong with the environment
  /// Variables of Env::known() that are set. None of them holds a secret, only names of files that do.
  std::vector<std::pair<std::string, std::string>> variables{};
};

enum class Severity : std::uint8_t { note, warning, error };

struct Problem {
  Severity severity = Severity::note;
  std::string id{};  ///< stable, for scripts
  std::string what{};
  std::string fix{};
};

struct Report {
  Versions versions{};
  std::vector<BackendState> backends{};
  AutoReport choice{};
  CpuReport cpu{};
  MemoryReport memory{};
  LimitReport limits{};
  HostName host{};
  std::vector<InterfaceReport> interfaces{};
  GpuReport gpu{};
  LaunchReport launch{};
  std::vector<Problem> problems{};

  bool has_errors() const;
};

/// Makes the whole report. Takes a few milliseconds, and at most four seconds more where name resolution hangs.
Report examine();

CpuReport examine_cpu();
MemoryReport examine_memory();
LimitReport examine_limits();
std::vector<InterfaceReport> examine_interfaces();
GpuReport examine_gpus();
/// Also false when the answer takes more than two seconds.
bool host_resolves(const std::string& name);

/// The problems that follow from the rest of the report. `env` is nullopt where it could not be read (see
/// launch.error).
std::vector<Problem> find_problems(const Report& report, const std::optional<Env>& env);

std::string render_text(const Report& report);
std::string render_json(const Report& report);

}  // namespace cohort::tool
