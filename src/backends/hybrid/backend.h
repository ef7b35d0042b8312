// SPDX-License-Identifier: BSD-3-Clause
//
// Backend "hybrid": the ranks of one host communicate through shared memory, and the leaders of each host communicate
// with those of other hosts through an engine (gloo or mpi).
//
// Every host has as many leaders as the smallest host has ranks; the l-th leaders of all hosts form a rail. A reduction
// of S bytes over H hosts with L leaders each:
//
//   in each host   reduce-scatter among its ranks: leader l has slice l of S, combined in rank order
//   between hosts  rail l all-reduces its slice: S/L bytes per leader, all rails at once
//   in each host   all-gather of the slices
//
// A large reduction is cut into parts, of which one crosses the network while others are combined and distributed. Each
// byte crosses the network about 2(H-1)/H times per host, not per rank. The reduction combines first the ranks of
// a host in rank order, then the hosts in the engine's order.
//
// A rank that dies or fails is made known to all ranks through the store (common/failure_coordinator.h).
#pragma once

#include <cohort/backend.h>
#include <cohort/store.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/common/failure_coordinator.h"
#include "backends/hybrid/placement.h"
#include "backends/hybrid/transfers.h"
#include "backends/shm/backend.h"
#include "group/serial_executor.h"

namespace cohort::hybrid {

/// The parts of a hybrid group, all as seen by this rank.
struct HybridParts {
  std::string group{};  ///< id of the group
  StorePtr store{};     ///< with keys of the group's own
  int rank = 0;
  Placement placement{};
  BackendPtr local{};  ///< the ranks of this host, even if it is only this one
  BackendPtr world{};  ///< all ranks, through the engine; null on one host
  BackendPtr rail{};   ///< the leaders with this rank's local rank; null on one host, or if this rank is not a leader
};

class HybridBackend final : public Backend {
 public:
  HybridBackend(HybridParts parts, Deadline deadline);
  ~HybridBackend() override;
  HybridBackend(const HybridBackend&) = delete;
  HybridBackend& operator=(const HybridBackend&) = delete;

  Capabilities capabilities() const override;

  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call) override;
  void rest(Deadline until) override;

  GroupMemory allocate(std::size_t bytes) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  /// On one host. A group on several hosts is shrunk through its store.
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;
  std::vector<int> lost_among(std::span<const int> ranks) override { return coordinator_->lost_among(ranks); }
  void abort(std::string_view reason) override;
  void shutdown(Deadline deadline) override;
  std::string status() const override;

  const Placement& placement() const { return parts_.placement; }

 private:
  /// The division of the elements among the leaders of a host.
  struct LeaderSlices;

  shm::LocalBackend& local() { return local_; }
  void all_reduce(const Operation& op, Call& call) override;
  void reduce(const Operation& op, Call& call) override;
  void broadcast(const Operation& op, Call& call) override;
  void all_gather(const Operation& op, Call& call) override;
  void gather(const Operation& op, Call& call) override;
  void scatter(const Operation& op, Call& call) override;
  void reduce_scatter(const Operation& op, Call& call) override;
  void all_to_all(const Operation& op, Call& call) override;
  void barrier(const Operation& op, Call& call) override;
  void send(const Operation& op, Call& call) override;
  int recv(const Operation& op, Call& call) override;

  /// Combines the contributions of this host's ranks; a leader's slice of the result goes into `mine`.
  void reduce_on_host(const Operation& op, const LeaderSlices& slices, void* mine, Call& call);
  /// Reduces a leader's slice over all hosts, in place.
  void reduce_between_hosts(const Operation& op, Call& call);
  /// The same on a separate thread, one reduction after another.
  Future<void> start_between_hosts(const Operation& op, Call& call);
  /// Distributes the leaders' slices to all ranks of this host.
  void spread_on_host(Bytes data, const LeaderSlices& slices, Call& call);
  void barrier_of_all(Call& call);
  BackendPtr divide(std::span<const BackendSplit> parts, Deadline deadline);
  /// Runs an operation: errors of its parts become errors about ranks of this group. A group on one host passes the
  /// operation on to shared memory unchanged.
  template <class Run>
  void guarded(const Operation& op, Call& call, Run&& run);
  /// Ends the group, naming the rank at fault as far as it can be determined.
  [[noreturn]] void throw_explained(const BackendError& error, Call& call);
  /// The same for a send or receive, whose failure does not end the group.
  [[noreturn]] void explain_transfer(const BackendError& error, const Call& call);
  /// The failure to report instead if the rank that was lost has left in good order. Asks the store.
  std::optional<Failure> departure_behind(const Failure& failure);
  /// Translates the error of a part into one of this group, with this group's rank numbers.
  Failure translated(const BackendError& error) const;
  Route route_to(int peer);
  std::unique_ptr<Transfer> translated(std::unique_ptr<Transfer> inner, int peer, const Call& call);

  HybridParts parts_;
  shm::LocalBackend& local_;                         ///< parts_.local, which takes failures of the whole group
  std::vector<std::byte> scratch_;                   ///< used by one collective at a time
  int splits_ = 0;                                   ///< likewise
  std::unique_ptr<SerialExecutor> crossings_;        ///< null until the first large reduction
  std::unique_ptr<FailureCoordinator> coordinator_;  ///< last, because its thread uses the other members
};

}  // namespace cohort::hybrid
