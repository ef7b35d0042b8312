// SPDX-License-Identifier: BSD-3-Clause
//
// The backend for ranks that share memory: `shm` for processes, `thread` for threads.
#pragma once

#include <cohort/backend.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backends/shm/bootstrap/bootstrap.h"
#include "backends/shm/engine.h"
#include "backends/shm/messages/messenger.h"

namespace cohort::shm {

class LocalBackend final : public Backend {
 public:
  LocalBackend(EngineParts parts, BootstrapFunction bootstrap);

  Capabilities capabilities() const override;

  int perform(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call) override;
  void rest(Deadline until) override;

  GroupMemory allocate(std::size_t bytes) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;
  void abort(std::string_view reason) override;
  /// Like abort(), for a part of a group that has failed (hybrid): errors on all ranks of this part carry that failure
  /// as the cause of their own.
  void end_with(const Failure& failure_of_whole);
  std::string status() const override;

 private:
  // Each is defined in the file of the same name in collectives.
  void all_reduce(const Operation& op, Call& call) override;
  void reduce(const Operation& op, Call& call) override;
  void broadcast(const Operation& op, Call& call) override;
  void all_gather(const Operation& op, Call& call) override;
  void gather(const Operation& op, Call& call) override;
  void scatter(const Operation& op, Call& call) override;
  void reduce_scatter(const Operation& op, Call& call) override;
  void all_to_all(const Operation& op, Call& call) override;
  void barrier(const Operation& op, Call& call) override;

  /// The reason why ranks of a new group can never join, if there is one.
  /// Throws the failure of this group that is behind the error with which the part was not made, if there is one.
  void explain_missing(const BackendSplit& part, const BackendError& error, Deadline deadline);
  std::optional<Failure> trouble_among(const std::vector<int>& ranks);

  Engine engine_;
  Messenger messenger_;
  BootstrapFunction bootstrap_;
};

}  // namespace cohort::shm
