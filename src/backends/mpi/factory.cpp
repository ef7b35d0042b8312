// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/factory.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include "backends/mpi/backend.h"
#include "backends/mpi/process_info.h"
#include "backends/mpi/runtime.h"
#include "group/group_ids.h"

namespace cohort::mpi {

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options) {
  OptionReader(options, "mpi").finish();
  if (device.type != DeviceType::cpu) {
    throw ValueError(fmt::format("backend mpi is for cpu memory, not for {}", cohort::to_string(device)));
  }
  const auto deadline = Deadline::after(store->timeout());
  auto& runtime = Runtime::of_process(deadline);
  const auto id = agree_on_id(*store, "mpi");
  const auto self = ProcessInfo::of_this_process(runtime.library());
  const auto all = exchange_process_info(*store, self, rank, size, id, deadline);
  MpiParts parts{.runtime = &runtime,
                 .rank = rank,
                 .world_ranks = world_ranks_of(all, id),
                 .group = id,
                 .own_cpus = have_own_cpus(all, self.host)};
  parts.communicator = create_communicator(runtime, parts.world_ranks, id, deadline);
  auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout, id);
  group->add_backend(DeviceType::cpu, std::make_shared<MpiBackend>(std::move(parts)));
  return group;
}

std::string missing() {
#ifdef COHORT_HAS_MPI
  return {};
#else
  return "it was built without MPI: install libopenmpi-dev or libmpich-dev and build Cohort again";
#endif
}

}  // namespace cohort::mpi
