// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/communicators.h"

#include <cohort/error.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace cohort::mpi {

namespace {

/// Tells groups apart that threads of the same processes make at the same time; every MPI has 32768 tags at least.
int tag_of(std::string_view group) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char each : group) hash = (hash ^ static_cast<std::uint8_t>(each)) * 16777619U;
  return static_cast<int>((hash ^ (hash >> 15U)) & 0x7FFFU);
}

}  // namespace

Communicator create_communicator(Runtime& runtime, const std::vector<int>& world_ranks, std::string_view group,
                                 Deadline deadline) {
  const auto made = std::make_shared<std::atomic<Communicator>>();
  const ErrorContext context{.group = std::string(group), .op = "new_group"};
  try {
    const bool is_done = runtime.run_bounded(
        [&runtime, made, world_ranks, tag = tag_of(group), deadline] {
          const auto turn = runtime.turn(deadline);
          *made = runtime.library().create_communicator(world_ranks, tag);
        },
        deadline);
    if (is_done) return *made;
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& e) {
    throw BackendError(e.what(), context);
  }
  runtime.leave_behind(nullptr);
  throw OperationTimeoutError("MPI_Comm_create_group did not end: a rank has not come", context);
}

}  // namespace cohort::mpi
