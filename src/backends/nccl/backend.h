// SPDX-License-Identifier: BSD-3-Clause
//
// NCCL behind a process group: each operation is enqueued on a stream, watched, and ended when the device has completed
// it.
//
// An operation that is not asynchronous is enqueued on the user's stream itself. An asynchronous one is enqueued on the
// group's own stream, which waits for the user's stream first; the user's stream waits for it in Work::wait().
// Operations that are captured into a graph are enqueued like any other, but not watched.
#pragma once

#include <cohort/backend.h>
#include <cohort/store.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/objects.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/options.h"
#include "backends/nccl/types.h"
#include "backends/nccl/watchdog.h"

namespace cohort::nccl {

class NcclBackend final : public Backend {
 public:
  /// `store` has keys of the group's own.
  NcclBackend(const Engine& engine, cuda::ContextPtr context, CommunicatorPtr communicator, StorePtr store,
              GroupOptions options, Deadline deadline);
  /// Destroys the communicator in good order if the peers do so soon, and aborts it otherwise.
  ~NcclBackend() override;

  Capabilities capabilities() const override;
  void check_arguments(const Operation& op) const override;

  GroupMemory allocate(std::size_t bytes) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  /// For new_group with split_from: called by all ranks, each with its color, and with keys of the new group's own.
  BackendPtr split_by_color(int color, const Communicator::Place& place, const StorePtr& store, GroupOptions options,
                            Deadline deadline);
  void prepare_shrink() override;
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;
  void abort(std::string_view reason) override;
  bool drain(Deadline deadline) override;
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
  void begin_batch(Call& call) override;
  void end_batch(Call& call) override;
  void cancel_batch(Call& call) noexcept override;

  /// What the calls into NCCL need: the turn to use the communicator, the stream, and what is checked after each call.
  struct Launch;
  using Body = std::function<void(Launch&)>;

  /// Runs `body` and stores the completion in the call; inside a batch, the batch stores it.
  void enqueue(const Operation& op, Call& call, const Body& body);
  void begin(Launch& launch, Call& call);
  void finish(Launch& launch, Call& call);
  /// Makes several calls into NCCL that must begin together.
  static void together(Launch& launch, const std::function<void()>& calls);
  /// Calls `fn(how, op)` with NCCL's types and operator for the reduction.
  static void with_op(Launch& launch, const Operation& op, const std::function<void(const Reducing&, RedOp)>& fn);
  /// Sends to and receives from all ranks at once; empty pieces are left out.
  static void exchange(Launch& launch, std::span<const ConstBytes> to, std::span<const Bytes> from);
  /// For host memory, which only the library itself passes: blocks, and performs the same operation on copies on the
  /// device.
  void perform_on_copies(const Operation& op, Call& call);
  /// Ends the group on all ranks, and throws the failure that they agree on.
  [[noreturn]] void fail_with(const std::exception_ptr& error, const Call& call);
  /// Keys of its own for a group that is made from this one.
  StorePtr keys_for(const std::string& id) const;
  ErrorContext context_of(const Call& call) const;
  ErrorContext context_of(std::string_view op) const { return {.group = group(), .op = std::string(op)}; }
  const std::string& group() const { return communicator_->place().group; }

  const Engine& engine_;
  const cuda::ContextPtr context_;
  const CommunicatorPtr communicator_;
  const StorePtr store_;
  const GroupOptions options_;
  const cuda::Stream stream_;
  const std::shared_ptr<cuda::EventPool> events_;
  // Used in the communicator's turn: the events that the group's stream waits for, one for user streams that are not
  // captured and one for those that are.
  const cuda::Event user_is_here_;
  const cuda::Event captured_user_is_here_;
  const cuda::Memory barrier_memory_;
  std::unique_ptr<Launch> batch_;  ///< used in the communicator's turn, which it holds
  std::atomic<const Call*> batch_call_{nullptr};
  Watchdog watchdog_;
};

}  // namespace cohort::nccl
