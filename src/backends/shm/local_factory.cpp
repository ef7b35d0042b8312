// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/local_factory.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include "backends/shm/founding.h"
#include "backends/shm/local_backend.h"
#include "group/group_ids.h"

namespace cohort::shm {

namespace {

ProcessGroupPtr make(const std::string& name, Founder founder, const StorePtr& store, int rank, int size,
                     std::chrono::milliseconds timeout, const Device& device, const Options& options) {
  OptionReader(options, name).finish();
  if (device.type != DeviceType::cpu) {
    throw ValueError(fmt::format("backend {} is for cpu memory, not for {}", name, to_string(device)));
  }
  if (size > most_ranks) throw ValueError(fmt::format("backend {}: at most {} ranks, not {}", name, most_ranks, size));
  const auto deadline = Deadline::after(store->timeout());
  const auto id = agree_on_id(*store, name);
  const auto exchange = [&](std::string_view ticket) {
    if (ticket.empty()) {
      try {
        return store->get("founder", deadline);
      } catch (const StoreTimeoutError&) {
        throw OperationTimeoutError("rank 0 did not come", {.group = id, .op = "new_group", .rank = 0});
      }
    }
    store->set("founder", ticket, deadline);
    return std::string(ticket);
  };
  auto parts =
      founder({.name = name, .group = id, .rank = rank, .size = size, .deadline = deadline, .exchange = exchange});
  auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout, id);
  group->add_backend(DeviceType::cpu, std::make_shared<LocalBackend>(std::move(parts), founder));
  return group;
}

}  // namespace

ProcessGroupPtr make_shm_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                               const Device& device, const Options& options) {
  return make("shm", found_among_processes, store, rank, size, timeout, device, options);
}

ProcessGroupPtr make_thread_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options) {
  return make("thread", found_among_threads, store, rank, size, timeout, device, options);
}

}  // namespace cohort::shm
