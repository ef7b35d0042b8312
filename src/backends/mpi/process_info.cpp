// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/process_info.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "core/cpus.h"
#include "core/parse.h"
#include "core/rank_index.h"

namespace cohort::mpi {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string key_of(int rank) {
  return fmt::format("mpi/{}", rank);
}

}  // namespace

ProcessInfo ProcessInfo::of_this_process(Library& library) {
  const auto usable = usable_cpus();
  return {.world_rank = library.world_rank(),
          .world_size = library.world_size(),
          .quota = usable.quota.value_or(0),
          .host = host_name(),
          .version = library.version(),
          .cpus = usable.mask};
}

std::string encode(const ProcessInfo& info) {
  std::string cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &info.cpus)) cpus += fmt::format("{}{}", cpus.empty() ? "" : ",", cpu);
  }
  // Hundredths of a CPU: a quota is not more precise.
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", info.world_rank, info.world_size, static_cast<int>(info.quota * 100),
                     info.host, cpus, info.version);
}

ProcessInfo decode_process_info(const std::string& text) {
  const auto lines = split(text, '\n');
  const auto number = [&](std::size_t line) {
    const auto value = line < lines.size() ? parse_integer<int>(lines[line]) : std::nullopt;
    if (!value)
      throw BackendError("backend mpi: what another rank has written about itself to the store cannot be read");
    return *value;
  };
  ProcessInfo info{.world_rank = number(0), .world_size = number(1), .quota = number(2) / 100.0};
  if (lines.size() != 6)
    throw BackendError("backend mpi: another rank has written too much or too little about itself to the store");
  info.host = lines[3];
  info.version = lines[5];
  for (const auto each : split(lines[4], ',')) {
    const auto cpu = parse_integer<int>(each);
    if (cpu && *cpu >= 0 && *cpu < CPU_SETSIZE) CPU_SET(*cpu, &info.cpus);
  }
  return info;
}

std::vector<ProcessInfo> exchange_process_info(Store& store, const ProcessInfo& self, int rank, int size,
                                               const std::string& group, Deadline deadline) {
  store.set(key_of(rank), encode(self), deadline);
  std::vector<ProcessInfo> all;
  all.reserve(index_of(size));
  for (int each = 0; each < size; ++each) {
    try {
      all.push_back(decode_process_info(store.get(key_of(each), deadline)));
    } catch (const StoreTimeoutError&) {
      throw OperationTimeoutError(fmt::format("rank {} did not join in time", each),
                                  {.group = group, .op = "new_group", .rank = each});
    }
  }
  return all;
}

std::vector<int> world_ranks_of(const std::vector<ProcessInfo>& all, const std::string& group) {
  std::vector<int> ranks;
  for (const auto& each : all) {
    const auto rank = static_cast<int>(ranks.size());
    const ErrorContext context{.group = group, .op = "new_group", .rank = rank};
    if (each.world_size != all.front().world_size || each.version != all.front().version) {
      throw BackendError(
          fmt::format("ranks 0 and {} were not started by one mpirun: one runs {} with {} processes, the "
                      "other {} with {}",
                      rank, all.front().version, all.front().world_size, each.version, each.world_size),
          context);
    }
    const auto other = std::find(ranks.begin(), ranks.end(), each.world_rank);
    if (other != ranks.end()) {
      throw BackendError(fmt::format("ranks {} and {} are both process {} of MPI: each rank is a process of its own, "
                                     "started by the same mpirun",
                                     other - ranks.begin(), rank, each.world_rank),
                         context);
    }
    ranks.push_back(each.world_rank);
  }
  return ranks;
}

bool have_own_cpus(const std::vector<ProcessInfo>& all, const std::string& host) {
  cpu_set_t cpus{};
  double quota = 0;
  int ranks = 0;
  for (const auto& each : all) {
    if (each.host != host) continue;
    ++ranks;
    CPU_OR(&cpus, &cpus, &each.cpus);
    quota = std::max(quota, each.quota);
  }
  return ranks <= CPU_COUNT(&cpus) && (quota == 0 || ranks <= quota);
}

}  // namespace cohort::mpi
