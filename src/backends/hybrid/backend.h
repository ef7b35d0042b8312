// SPDX-License-Identifier: BSD-3-Clause
//
// Backend "hybrid": ranks of one host meet in shared memory, and each host's leaders talk to those of other hosts
// through an engine (gloo or mpi).
//
// Every host has as many leaders as the smallest host has ranks; the l-th leaders of all hosts are a rail. A reduction
// of S bytes over H hosts with L leaders each:
//
//   in each host   reduce-scatter among its ranks: leader l has slice l of S, combined in rank order
//   between hosts  rail l all-reduces its slice: S/L bytes per leader, all rails at once
//   in each host   all-gather of the slices
//
// (a large one in parts, of which one crosses while others are combined and spread)
// so each byte crosses the network about 2(H-1)/H times per host, not per rank. Order: first the ranks of a host in
// rank order, then the hosts in the engine's order.
//
// Whoever dies or gives up is made known to all through the store (common/failure_coordinator.h).
#pragma once

#include <cohort/backend.h>
#include <cohort/store.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/common/failure_coordinator.h"
#include "backends/hybrid/placement.h"
#include "backends/hybrid/transfers.h"
#include "group/serial_executor.h"

namespace cohort::hybrid {

/// What a hybrid group is put together from; all of this rank.
struct HybridParts {
  std::string group{};  ///< id
  StorePtr store{};     ///< the group's own keys
  int rank = 0;
  Placement placement{};
  BackendPtr local{};  ///< ranks of this host, be it this one alone
  BackendPtr world{};  ///< all ranks, through the engine; null on one host
  BackendPtr rail{};   ///< the leaders with this one's local rank; null if this rank is no leader, or on one host
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
  void abort(std::string_view reason) override;
  void shutdown() override;
  std::string status() const override;

  const Placement& placement() const { return parts_.placement; }

 private:
  /// A part of the elements, for each leader of a host.
  struct Slices;

  Backend& local() { return *parts_.local; }
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

  /// What this host's ranks contribute, combined: a leader's slice of it into `mine`.
  void reduce_on_host(const Operation& op, const Slices& slices, void* mine, Call& call);
  /// A leader's slice, which is in place, becomes that of all hosts.
  void reduce_between_hosts(const Operation& op, Call& call);
  /// The same on a thread of its own, one after another.
  Future<void> start_between_hosts(const Operation& op, Call& call);
  /// What the leaders have goes to all ranks of this host.
  void spread_on_host(Bytes data, const Slices& slices, Call& call);
  void barrier_of_all(Call& call);
  /// Runs an operation: what its parts throw becomes an error about ranks of this group. A group on one host hands the
  /// operation to shared memory as it is.
  template <class Run>
  void guarded(const Operation& op, Call& call, Run&& run);
  /// The group is over: who is at fault, as far as that can be found out.
  [[noreturn]] void explain(const BackendError& error, Call& call);
  /// The same for a send or receive, which takes nothing with it.
  [[noreturn]] void explain_transfer(const BackendError& error, const Call& call);
  /// A part's error as one of this group: ranks by their numbers here.
  Failure translated(const BackendError& error) const;
  Route route_to(int peer);
  std::unique_ptr<Transfer> translated(std::unique_ptr<Transfer> inner, int peer, const Call& call);

  HybridParts parts_;
  std::vector<std::byte> scratch_;                   ///< in the turn of collectives
  int splits_ = 0;                                   ///< likewise
  std::unique_ptr<SerialExecutor> crossings_;        ///< null until there is a large reduction
  std::unique_ptr<FailureCoordinator> coordinator_;  ///< last: its thread uses the others
};

}  // namespace cohort::hybrid
