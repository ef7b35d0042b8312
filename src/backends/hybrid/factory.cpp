// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hybrid/factory.h"

#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/prefix_store.h>

#include <fmt/format.h>

#include "backends/common/joining.h"
#include "backends/common/local_address.h"
#include "backends/gloo/backend.h"
#include "backends/gloo/factory.h"
#include "backends/hybrid/backend.h"
#include "backends/hybrid/parts.h"
#include "backends/shm/factory.h"
#include "core/bytes.h"
#include "core/log_format.h"
#include "core/random.h"
#include "core/rank_index.h"
#include "group/factories.h"
#include "group/group_ids.h"

namespace cohort::hybrid {

namespace {

// What the ranks tell each other (exchange_values).
constexpr auto host_exchange = "host";
constexpr auto mapped_exchange = "mapped";

std::chrono::milliseconds left(Deadline deadline) {
  return std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

/// The shared-memory backend of this host's ranks, or the reason why there is none.
struct Mapped {
  BackendPtr backend{};
  std::string why_not{};
};

Mapped map_host(const StorePtr& store, const Placement& placement, const std::string& group, bool are_threads,
                Deadline deadline, const FailureCheck& failure_check) {
  const auto keys = std::make_shared<PrefixStore>(fmt::format("host/{}", placement.host()), store);
  try {
    return {.backend = shm::make_part(are_threads, keys, local_id(group, placement), placement.local_rank(),
                                      static_cast<int>(placement.here().size()), deadline, failure_check)};
  } catch (const Error& e) {
    if (failure_check && failure_check()) throw;
    return {.why_not = e.message()};
  }
}

/// Equal host names are only a guess until memory has been mapped: hosts on which that failed are split into single
/// ranks, in the same way on every rank.
Placement confirm(Store& store, const Placement& guess, const Mapped& mapped, int rank, Deadline deadline,
                  const FailureCheck& failure_check) {
  const auto outcomes = exchange_values(store, mapped_exchange, mapped.backend != nullptr ? "yes" : mapped.why_not,
                                        rank, guess.size(), deadline, failure_check);
  std::vector<std::vector<int>> hosts;
  for (const auto& host : guess.hosts()) {
    const auto failed =
        std::find_if(host.begin(), host.end(), [&](int each) { return outcomes[index_of(each)] != "yes"; });
    if (failed == host.end()) {
      hosts.push_back(host);
      continue;
    }
    if (host.front() == rank) {
      log_warn("ranks that seem to share a host cannot share memory and will communicate over the network: {}",
               outcomes[static_cast<std::size_t>(*failed)]);
    }
    for (const int each : host) hosts.push_back({each});
  }
  std::sort(hosts.begin(), hosts.end(), [](const auto& a, const auto& b) { return a.front() < b.front(); });
  return Placement(std::move(hosts), rank);
}

BackendPtr make_world(const std::string& engine, const StorePtr& store, int rank, int size, const std::string& group,
                      const Env& env, Deadline deadline, const FailureCheck& failure_check) {
  const auto keys = std::make_shared<PrefixStore>("world", store);
  if (engine != "gloo") {
    const StoreTimeoutGuard guard(*keys, left(deadline));
    return find_backend(engine)(keys, rank, size, left(deadline), Device(DeviceType::cpu), {})->default_backend();
  }
  if (const auto why = gloo::what_is_missing(); !why.empty()) {
    throw ValueError(fmt::format("several hosts need an engine, and backend gloo cannot be used here: {}", why));
  }
  return std::make_shared<gloo::GlooBackend>(gloo::GlooParts{.group = group,
                                                             .store = keys,
                                                             .rank = rank,
                                                             .size = size,
                                                             .address = local_address(env, store, deadline),
                                                             .make_mesh = gloo::module_function(),
                                                             .is_part = true,
                                                             .failure_check = failure_check},
                                             deadline);
}

HybridParts make_parts(const StorePtr& store, int rank, int size, const std::string& engine, Deadline deadline,
                       const FailureCheck& failure_check) {
  const auto env = Env::read();
  HybridParts parts;
  parts.store = store;
  parts.rank = rank;
  parts.group = agree_on_id(*store, "hybrid");
  // Ranks that are threads of one process share memory without any mapping.
  const auto process = process_nonce();
  const auto nonce = std::string(process.begin(), process.end());
  const auto names =
      exchange_values(*store, host_exchange, fmt::format("{}\n{}", host_name_of_this_process(env), nonce), rank, size,
                      deadline, failure_check);
  std::vector<std::string> hosts;
  hosts.reserve(names.size());
  for (const auto& name : names) hosts.push_back(name.substr(0, name.size() - nonce.size() - 1));
  const Placement guess(hosts, rank);
  bool are_threads = guess.here().size() > 1;
  for (const int each : guess.here()) are_threads = are_threads && names[index_of(each)].ends_with(nonce);
  auto mapped = map_host(store, guess, parts.group, are_threads, deadline, failure_check);
  parts.placement = confirm(*store, guess, mapped, rank, deadline, failure_check);
  if (parts.placement.here() != guess.here() || mapped.backend == nullptr) {
    const auto alone = std::make_shared<PrefixStore>(fmt::format("alone/{}", rank), store);
    mapped = map_host(alone, parts.placement, parts.group, true, deadline, failure_check);
    if (mapped.backend == nullptr) throw BackendError(mapped.why_not, {.group = parts.group, .op = "new_group"});
  }
  parts.local = std::move(mapped.backend);
  if (parts.placement.hosts().size() > 1) {
    parts.world = make_world(engine, store, rank, size, parts.group, env, deadline, failure_check);
    parts.rail = make_rail(*parts.world, parts.placement, parts.group, deadline);
  }
  return parts;
}

Store::Keys keys_of_making(int size) {
  Store::Keys keys{"id"};
  for (const auto* const what : {host_exchange, mapped_exchange}) {
    for (auto& key : keys_of_exchange(what, size)) keys.push_back(std::move(key));
  }
  return keys;
}

void refuse_device(const std::string& name, const Device& device) {
  if (device.type == DeviceType::cpu) return;
  throw ValueError(fmt::format("backend {} is for cpu memory, not for {}", name, to_string(device)));
}

std::string default_engine() {
  const auto told = Env::read_one("COHORT_ENGINE");
  return told.empty() ? "gloo" : told;
}

std::string engine_of(const Options& options, const std::string& reader) {
  OptionReader read(options, reader);
  auto engine = read.get("engine", default_engine());
  read.finish();
  if (engine != "gloo" && engine != "mpi") {
    throw ValueError(fmt::format("backend {}: engine \"{}\": gloo or mpi", reader, engine));
  }
  return engine;
}

}  // namespace

ProcessGroupPtr make_hybrid_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options) {
  refuse_device("hybrid", device);
  const auto engine = engine_of(options, "hybrid");
  const auto deadline = Deadline::after(store->timeout());
  Joining joining(store, rank, size, deadline, keys_of_making(size));
  return joining.run([&] {
    auto parts = make_parts(store, rank, size, engine, deadline, joining.failure_check());
    const auto id = parts.group;
    if (rank == 0) log_info("group {}: hybrid over {}, {}", id, engine, to_string(parts.placement));
    auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout, id);
    group->add_backend(DeviceType::cpu, std::make_shared<HybridBackend>(std::move(parts), deadline));
    return group;
  });
}

AutoChoices choices_of_auto() {
  const auto absent = absent_backends();
  const auto choice = [&](const std::string& needed, const std::string& chosen) {
    const auto why = absent.find(needed);
    return why == absent.end() ? chosen : fmt::format("none: {}", why->second);
  };
  const auto engine = default_engine();
  return {.one_host = "shm",
          .several_hosts = choice(engine, fmt::format("hybrid over {}", engine)),
          .cuda = choice("nccl", "nccl")};
}

ProcessGroupPtr make_auto_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                const Device& device, const Options& options) {
  if (device.type == DeviceType::cuda) {
    if (rank == 0) log_info("backend auto: nccl, for {}", to_string(device));
    return find_backend("nccl")(store, rank, size, timeout, device, options);
  }
  const auto engine = engine_of(options, "auto");
  const auto deadline = Deadline::after(store->timeout());
  Joining joining(store, rank, size, deadline, keys_of_making(size));
  return joining.run([&] {
    auto parts = make_parts(store, rank, size, engine, deadline, joining.failure_check());
    const auto id = parts.group;
    const bool is_one_host = parts.world == nullptr;
    if (rank == 0) {
      log_info("group {}: backend auto: {}, {}", id, is_one_host ? "shm" : "hybrid over " + engine,
               to_string(parts.placement));
    }
    auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout, id);
    group->add_backend(DeviceType::cpu,
                       is_one_host ? parts.local : std::make_shared<HybridBackend>(std::move(parts), deadline));
    return group;
  });
}

}  // namespace cohort::hybrid
