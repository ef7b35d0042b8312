// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/factory.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backends/common/joining.h"
#include "backends/nccl/backend.h"
#include "core/rank_index.h"
#include "group/group_ids.h"
#include "group/process_group_state.h"

namespace cohort::nccl {

namespace {

constexpr auto unique_id_key = "nccl";

/// Rank 0 makes the id, and the store passes it on.
UniqueId exchange_id(const Engine& engine, Store& store, int rank, const FailureCheck& failure_check, Deadline deadline,
                     const ErrorContext& errors) {
  UniqueId id;
  if (rank == 0) {
    id = Communicator::new_id(engine);
    store.set(unique_id_key, std::string_view(id.bytes.data(), id.bytes.size()), deadline);
    return id;
  }
  std::string text;
  try {
    text = ask_store(deadline, failure_check, [&](Deadline until) { return store.get(unique_id_key, until); });
  } catch (const StoreTimeoutError&) {
    throw OperationTimeoutError("rank 0 did not join: its NCCL id is not in the store", errors);
  }
  if (text.size() != id.bytes.size()) {
    throw BackendError(fmt::format("the NCCL id in the store has {} bytes, not {}", text.size(), id.bytes.size()),
                       errors);
  }
  std::copy(text.begin(), text.end(), id.bytes.begin());
  return id;
}

BackendPtr split_from(const GroupOptions& chosen, const Communicator::Place& place, const StorePtr& store,
                      Deadline deadline) {
  if (chosen.split_color < 0) {
    throw ValueError(
        "nccl: split_color must not be negative; use split_group() to include ranks outside the new group");
  }
  const auto parent = std::dynamic_pointer_cast<NcclBackend>(chosen.split_from->backend(DeviceType::cuda));
  if (parent == nullptr) throw ValueError("nccl: split_from is not a group of this backend");
  return parent->split_by_color(chosen.split_color, place, store, chosen, deadline);
}

}  // namespace

ProcessGroupPtr make_group(const Engine& engine, const StorePtr& store, int rank, int size,
                           std::chrono::milliseconds timeout, const Device& device, const Options& options) {
  const auto chosen = read_options(options, engine.calls.version);
  if (device.type != DeviceType::cuda) {
    throw ValueError(fmt::format("backend nccl is for cuda memory, not for {}", to_string(device)));
  }
  if (!chosen.global_ranks.empty() && chosen.global_ranks.size() != index_of(size)) {
    throw ValueError(
        fmt::format("nccl: global_ranks_in_group has {} entries for a group of {}", chosen.global_ranks.size(), size));
  }
  cuda::start(engine.driver);
  const auto context = std::make_shared<const cuda::Context>(
      engine.driver, device.index >= 0 ? device.index : cuda::Context::current_device(engine.driver));
  const auto deadline = Deadline::after(store->timeout());
  const auto id = agree_on_id(*store, "nccl");
  const Communicator::Place place{.rank = rank, .size = size, .group = id};
  BackendPtr backend;
  if (chosen.split_from != nullptr) {
    backend = split_from(chosen, place, store, deadline);
  } else {
    Joining joining(store, rank, size, deadline, {"id", unique_id_key});
    backend = joining.run([&] {
      const auto unique = exchange_id(engine, *store, rank, joining.failure_check(), deadline,
                                      {.group = id, .op = "new_group", .rank = 0});
      auto made = Communicator::create(engine, context, place, unique, chosen.config_for(engine.calls.version),
                                       deadline, joining.failure_check());
      return std::make_shared<NcclBackend>(engine, context, std::move(made), store, chosen, deadline);
    });
  }
  auto group = std::make_shared<ProcessGroup>(store, rank, size, chosen.timeout.value_or(timeout), id);
  group->add_backend(DeviceType::cuda, std::move(backend));
  if (!chosen.group_name.empty()) group->set_group_name(chosen.group_name);
  if (!chosen.global_ranks.empty()) {
    GroupAccess::set_global_ranks(*group, {chosen.global_ranks.begin(), chosen.global_ranks.end()});
  }
  return group;
}

ProcessGroupPtr make_system_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options) {
  return make_group(system_engine(), store, rank, size, timeout, device, options);
}

std::string missing() {
  return system_engine().missing;
}

}  // namespace cohort::nccl
