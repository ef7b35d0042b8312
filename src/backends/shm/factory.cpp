// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/factory.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include "backends/common/joining.h"
#include "backends/shm/backend.h"
#include "backends/shm/bootstrap/bootstrap.h"
#include "group/group_ids.h"

namespace cohort::shm {

BackendPtr make_part(bool are_threads, const StorePtr& store, const std::string& group, int rank, int size,
                     Deadline deadline, const FailureCheck& failure_check) {
  const std::string name = are_threads ? "thread" : "shm";
  if (size > most_ranks) throw ValueError(fmt::format("backend {}: at most {} ranks, not {}", name, most_ranks, size));
  const auto exchange = [&](std::string_view ticket) {
    if (ticket.empty()) {
      try {
        return ask_store(deadline, failure_check, [&](Deadline until) { return store->get("bootstrap", until); });
      } catch (const StoreTimeoutError&) {
        throw OperationTimeoutError("rank 0 did not join", {.group = group, .op = "new_group", .rank = 0});
      }
    }
    store->set("bootstrap", ticket, deadline);
    return std::string(ticket);
  };
  const BootstrapFunction bootstrap = are_threads ? bootstrap_threads : bootstrap_processes;
  auto parts = bootstrap({.name = name,
                          .group = group,
                          .rank = rank,
                          .size = size,
                          .deadline = deadline,
                          .exchange = exchange,
                          .failure_check = failure_check});
  if (rank == 0) delete_key_quietly(*store, "bootstrap");  // all have read it
  return std::make_shared<LocalBackend>(std::move(parts), bootstrap);
}

namespace {

ProcessGroupPtr make(bool are_threads, const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                     const Device& device, const Options& options) {
  const std::string name = are_threads ? "thread" : "shm";
  OptionReader(options, name).finish();
  if (device.type != DeviceType::cpu) {
    throw ValueError(fmt::format("backend {} is for cpu memory, not for {}", name, to_string(device)));
  }
  const auto deadline = Deadline::after(store->timeout());
  Joining joining(store, rank, size, deadline, {"id"});
  return joining.run([&] {
    const auto id = agree_on_id(*store, name);
    auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout, id);
    group->add_backend(DeviceType::cpu,
                       make_part(are_threads, store, id, rank, size, deadline, joining.failure_check()));
    return group;
  });
}

}  // namespace

ProcessGroupPtr make_shm_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                               const Device& device, const Options& options) {
  return make(false, store, rank, size, timeout, device, options);
}

ProcessGroupPtr make_thread_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options) {
  return make(true, store, rank, size, timeout, device, options);
}

}  // namespace cohort::shm
