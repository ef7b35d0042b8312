// SPDX-License-Identifier: BSD-3-Clause
//
// Backend "gloo": Gloo over TCP, for hosts that have no faster network between them.
//
// all_reduce, reduce, broadcast, barrier and all_gather of equal parts use Gloo's algorithms; the others are sent piece
// by piece (exchange.h). What all ranks know chooses the algorithm, never where a rank's memory lies. Gloo restarts its
// timeout at each wait; here a timer ends the operation at its deadline. After an operation has failed or missed its
// deadline the group is over: connections are closed, other ranks notice, and every later call throws the reason.
#pragma once

#include <cohort/backend.h>
#include <cohort/store.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/common/failure_coordinator.h"
#include "backends/gloo/engine_interface.h"
#include "backends/gloo/point_to_point.h"
#include "group/own_part.h"

namespace cohort::gloo {

struct GlooParts {
  std::string group{};  ///< id of the group
  StorePtr store{};     ///< with keys of the group's own
  int rank = 0;
  int size = 1;
  std::string address{};  ///< address of the network interface
  MakeMesh make_mesh = nullptr;
  /// Whether this is a part of a larger group, which handles failures itself.
  bool is_part = false;
  /// Asked while the connections are made.
  FailureCheck failure_check{};
};

class GlooBackend final : public Backend {
 public:
  /// Connects to the other ranks; called by all of them.
  GlooBackend(GlooParts parts, Deadline deadline);
  ~GlooBackend() override;
  GlooBackend(const GlooBackend&) = delete;
  GlooBackend& operator=(const GlooBackend&) = delete;

  Capabilities capabilities() const override;

  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call) override;
  void rest(Deadline until) override;

  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  std::vector<int> lost_among(std::span<const int> ranks) override { return coordinator_->lost_among(ranks); }
  void abort(std::string_view reason) override;
  void shutdown(Deadline deadline) override;

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
  void send(const Operation& op, Call& call) override;
  int recv(const Operation& op, Call& call) override;

  /// Connects to the other ranks, or throws the reason why that is in vain.
  void join(Deadline deadline);
  void connect(Deadline deadline);
  void prove(Deadline deadline);
  /// Runs `run(digest, timeout)` for an operation of several ranks: a timer ends it at its deadline, and Gloo's errors
  /// become errors of this library. The digest is what the ranks must agree on; messages of ranks that do not agree
  /// never match.
  template <class Run>
  void guarded(const OpSignature& signature, Call& call, Run&& run);
  /// Sends and receives the pieces that `fill(exchange)` adds, all at once.
  template <class Fill>
  void exchange_pieces(const OpSignature& signature, Call& call, Fill&& fill);
  /// Turns an error of Gloo into one of this library, naming the rank at fault as far as it can be determined.
  [[noreturn]] void throw_explained(const std::exception& error, Call& call);
  std::unique_ptr<PointToPoint::Pending> pending_recv(const Operation& op, const Call& call);
  template <class Start>
  auto started(Call& call, Start&& start);
  void finish(PointToPoint::Pending& transfer, int peer, Call& call);
  OpSignature signature_of_pieces(const Operation& op) const;
  void reduce_pieces(const Operation& op, std::uint64_t digest, Call& call);
  BackendPtr make_part(std::span<const BackendSplit> divided, const OwnPart& own, Call& call);

  GlooParts parts_;
  std::shared_ptr<Mesh> mesh_;  ///< null for a group of one rank
  std::string mesh_key_;        ///< under which this rank publishes its addresses
  std::unique_ptr<PointToPoint> point_to_point_;
  std::vector<std::byte> scratch_;  ///< used by one collective at a time
  int splits_ = 0;                  ///< likewise
  std::atomic<unsigned> idle_rounds_{0};
  std::atomic<bool> has_failed_{false};
  std::shared_ptr<FailureCoordinator> coordinator_;  ///< last, because its thread uses the other members
};

}  // namespace cohort::gloo
