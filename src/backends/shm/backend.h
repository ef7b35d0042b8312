// SPDX-License-Identifier: BSD-3-Clause
//
// The backend of ranks that share memory: `shm` for processes, `thread` for threads. Engine and Messenger do the work.
#pragma once

#include <cohort/backend.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backends/shm/bootstrap.h"
#include "backends/shm/engine.h"
#include "backends/shm/messenger.h"

namespace cohort::shm {

class LocalBackend final : public Backend {
 public:
  LocalBackend(EngineParts parts, BootstrapFunction bootstrap);

  Capabilities capabilities() const override;

  void all_reduce(const Reduction& reduction, Call& call) override;
  void reduce(const Reduction& reduction, int root, Call& call) override;
  void broadcast(Bytes data, int root, Call& call) override;
  void all_gather(ConstBytes in, std::span<const Bytes> outs, Call& call) override;
  void gather(ConstBytes in, std::span<const Bytes> outs, int root, Call& call) override;
  void scatter(std::span<const ConstBytes> ins, Bytes out, int root, Call& call) override;
  void reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) override;
  void all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, Call& call) override;
  void barrier(Call& call) override;

  std::unique_ptr<Transfer> start_send(ConstBytes data, int peer, int tag, Call& call) override;
  std::unique_ptr<Transfer> start_recv(Bytes data, int peer_or_any, int tag, Call& call) override;
  void send(ConstBytes data, int peer, int tag, Call& call) override;
  int recv(Bytes data, int peer_or_any, int tag, Call& call) override;
  void rest(Deadline until) override;

  GroupMemory allocate(std::size_t bytes) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;
  void abort(std::string_view reason) override;
  std::string status() const override;

 private:
  /// Why ranks of a new group may never come.
  std::optional<Failure> trouble_among(const std::vector<int>& ranks);

  Engine engine_;
  Messenger messenger_;
  BootstrapFunction bootstrap_;
};

}  // namespace cohort::shm
