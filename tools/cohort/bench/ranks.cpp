// SPDX-License-Identifier: BSD-3-Clause
#include "bench/ranks.h"

#include <cohort/error.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/secret.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <sched.h>

#include <filesystem>

#include "bench/device_mirror.h"
#include "bench/group_system.h"
#include "common/cpu_share.h"
#include "measure/forked_store.h"

namespace cohort::bench {

namespace {

/// The only backend whose ranks are threads.
constexpr std::string_view threads = "thread";

/// Binds as `cohort run` does, so that what is measured is what users get.
void bind_to_cpus(int rank, int ranks) {
  const auto share = tool::share_cpus(usable_cpus(), ranks, true);
  if (share.bind.empty()) return;
  const auto& set = share.bind[static_cast<std::size_t>(rank)];
  ::sched_setaffinity(0, sizeof(set), &set);
}

bool is_on_cuda(const BenchFlags& flags, std::string_view backend) {
  return flags.device == "cuda" || (flags.device == "auto" && backend == "nccl");
}

ContestantName name_of(const BenchFlags& flags, const std::string& backend, MemoryKind memory) {
  return {.backend = backend, .memory = std::string(is_on_cuda(flags, backend) ? "cuda" : to_string(memory))};
}

}  // namespace

int drive_group(const BenchFlags& flags, const BenchPlan& plan) {
  const auto& backend = flags.backends.front();
  const auto memory = plan.memory.front();
  const auto make_system = [&](int rank, StorePtr store) {
    const auto device = is_on_cuda(flags, backend) ? device_of(rank) : Device{};
    auto group =
        new_group(backend, plan.timeout, device, {}, {.store = std::move(store), .rank = rank, .size = flags.ranks});
    return std::make_unique<GroupSystem>(std::move(group), memory, device);
  };
  if (backend == threads) {
    const auto store = std::make_shared<HashStore>();
    return drive(flags.ranks, RanksAre::threads, [&](int rank) { return make_system(rank, store); });
  }
  const ForkedStore store;
  return drive(flags.ranks, RanksAre::processes, [&](int rank) {
    bind_to_cpus(rank, flags.ranks);
    return make_system(rank, store.open(rank, plan.timeout));
  });
}

std::vector<std::unique_ptr<Contestant>> start_groups(const BenchFlags& flags, const BenchPlan& plan, int ranks,
                                                      const tool::Guard& guard) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const auto& backend : flags.backends) {
    for (const auto memory : plan.memory) {
      const DriverStart start{.command = {self, "bench", "--drive", "--backends", backend, "--memory",
                                          std::string(to_string(memory)), "--device", flags.device, "--ranks",
                                          fmt::to_string(ranks), "--timeout", fmt::format("{}", flags.timeout)},
                              .timeout = plan.timeout};
      contestants.push_back(std::make_unique<DrivenContestant>(name_of(flags, backend, memory), start, guard));
    }
  }
  return contestants;
}

std::vector<std::unique_ptr<Contestant>> join_groups(const BenchFlags& flags, const BenchPlan& plan, int local_rank) {
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const auto& backend : flags.backends) {
    if (backend == threads) {
      throw ValueError(
          "--backends thread: under a launcher the ranks are processes; use --ranks without a launcher to start "
          "threads");
    }
    const auto device = is_on_cuda(flags, backend) ? device_of(local_rank) : Device{};
    const auto group = new_group(backend, plan.timeout, device);
    for (const auto memory : plan.memory) {
      contestants.push_back(std::make_unique<LocalContestant>(name_of(flags, backend, memory),
                                                              std::make_unique<GroupSystem>(group, memory, device)));
    }
  }
  return contestants;
}

}  // namespace cohort::bench
