// SPDX-License-Identifier: BSD-3-Clause
#include "bench/ranks.h"

#include <cohort/error.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>

#include <fmt/format.h>

#include <filesystem>

#include "measure/device_mirror.h"
#include "measure/group_system.h"

namespace cohort::bench {

using namespace measure;

namespace {

/// The only backend whose ranks are threads.
constexpr std::string_view threads = "thread";

bool is_on_cuda(const BenchFlags& flags, std::string_view backend) {
  return flags.device == "cuda" || (flags.device == "auto" && backend == "nccl");
}

ContestantName name_of(const BenchFlags& flags, const std::string& backend, MemoryKind memory) {
  return {.backend = backend, .memory = std::string(is_on_cuda(flags, backend) ? "cuda" : to_string(memory))};
}

}  // namespace

int drive_group(const BenchFlags& flags, const BenchPlan& plan) {
  const auto& backend = flags.backends.front();
  const auto make_system = [&](int rank, const GroupMembers& members) {
    const auto device = is_on_cuda(flags, backend) ? device_of(rank) : Device{};
    return std::make_unique<GroupSystem>(new_group(backend, plan.timeout, device, {}, members), plan.memory.front(),
                                         device);
  };
  if (backend == threads) {
    const auto store = std::make_shared<HashStore>();
    return drive_threads(flags.ranks, [&](int rank, int size) {
      return make_system(rank, {.store = store, .rank = rank, .size = size});
    });
  }
  return drive([&](int rank, int /*size*/) { return make_system(rank, {}); });
}

std::vector<std::unique_ptr<Contestant>> start_groups(const BenchFlags& flags, const BenchPlan& plan, int ranks,
                                                      const tool::Guard& guard) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto size = fmt::to_string(ranks);
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const auto& backend : flags.backends) {
    if (backend == nobody) continue;
    for (const auto memory : plan.memory) {
      DriverStart start{.timeout = plan.timeout};
      if (backend != threads) start.command = {self, "run", "-n", size, "--no-prefix", "--no-pty"};
      start.command.insert(start.command.end(),
                           {self, "bench", "--drive", "--backends", backend, "--memory", std::string(to_string(memory)),
                            "--device", flags.device, "--ranks", size, "--timeout", fmt::format("{}", flags.timeout)});
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
