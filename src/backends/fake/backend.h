// SPDX-License-Identifier: BSD-3-Clause
//
// Any rank of a group of any size, without peers: for planning, tracing and tests. Data that would come from peers is
// filled in from this rank's own memory if that gives a value, and left unchanged otherwise; uninitialised memory is
// never exposed.
//
// With the option simulate_uniform_ranks, every rank is assumed to hold what this one holds, so that a sum over W ranks
// is W times the value. With the option error_on_collective, every collective (but no point-to-point operation) throws.
//
// Memory may be on the host or on CUDA devices; without a CUDA driver there is none to serve.
#pragma once

#include <cohort/backend.h>
#include <cohort/new_group.h>

#include <memory>
#include <span>

#include "backends/fake/device_memory.h"

namespace cohort::fake {

struct FakeOptions {
  bool error_on_collective = false;
  bool simulate_uniform_ranks = false;
};

class FakeBackend final : public Backend {
 public:
  /// With a driver it serves device memory, otherwise host memory.
  FakeBackend(int rank, int size, FakeOptions options, const cuda::Driver* driver = nullptr);

  Capabilities capabilities() const override;
  int perform(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call) override;
  GroupMemory allocate(std::size_t bytes) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;

 private:
  void all_reduce(const Operation& op, Call& call) override;
  void reduce(const Operation& op, Call& call) override;
  void broadcast(const Operation& op, Call& call) override;
  void all_gather(const Operation& op, Call& call) override;
  void gather(const Operation& op, Call& call) override;
  void scatter(const Operation& op, Call& call) override;
  void reduce_scatter(const Operation& op, Call& call) override;
  void all_to_all(const Operation& op, Call& call) override;
  void barrier(const Operation& op, Call& call) override;
  void copy(Bytes to, ConstBytes from, const Operation& op, Call& call);
  /// Combines `in` with itself as if all ranks held it.
  void combine_uniform(ConstBytes in, const Operation& op, Call& call);
  /// The same backend as another rank of another group.
  BackendPtr as(int rank, int size) const;

  const FakeOptions options_;
  const cuda::Driver* const driver_;
  const std::unique_ptr<DeviceMemory> device_memory_;  ///< null if it serves host memory
};

/// `driver` is null if there is none.
ProcessGroupPtr make_group_on(const cuda::Driver* driver, const StorePtr& store, int rank, int size,
                              std::chrono::milliseconds timeout, const Options& options);
ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options);

}  // namespace cohort::fake
