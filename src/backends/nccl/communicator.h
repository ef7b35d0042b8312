// SPDX-License-Identifier: BSD-3-Clause
//
// One rank's end of an NCCL communicator: non-blocking, so that whatever it waits for can be given up, used by one
// thread at a time, and ended exactly once: by destroy() in good order, or by abort().
//
// A communicator that broke stays broken: everybody who wants to use it gets the first error.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "backends/cuda/objects.h"
#include "backends/nccl/engine_interface.h"
#include "core/turn.h"

namespace cohort::nccl {

class Communicator;
using CommunicatorPtr = std::shared_ptr<Communicator>;

class Communicator {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    std::string group{};  ///< its id, for errors
  };

  /// Called by all ranks with the id that one of them got from new_id(). An OperationTimeoutError when the others do
  /// not come in time.
  static CommunicatorPtr create(const Engine& engine, const cuda::ContextPtr& context, const Place& place,
                                const UniqueId& id, Config config, Deadline deadline);
  static UniqueId new_id(const Engine& engine);
  /// Of a handle, which is this object's from now on.
  Communicator(const Engine& engine, cuda::ContextPtr context, Place place, Comm* comm)
      : engine_(engine), context_(std::move(context)), place_(std::move(place)), comm_(comm) {}
  /// Destroys it as an abort does, if nobody has ended it before.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Place& place() const noexcept { return place_; }

  /// The turn to use it, for a scope.
  class Use {
   public:
    Comm* get() const noexcept { return comm_; }

    Use(Communicator& communicator, Deadline deadline);
    bool is_held() const { return static_cast<bool>(holder_); }

   private:
    Turn::Holder holder_;
    Comm* comm_ = nullptr;
  };
  /// Throws the error if it is broken, an OperationTimeoutError if it is not free in time.
  std::unique_ptr<Use> use(Deadline deadline, const ErrorContext& context);
  /// Null if somebody uses it or it is broken.
  std::unique_ptr<Use> try_use();

  /// What a call into NCCL returned: waits, while it is in progress, for its end. Throws what went wrong: the
  /// communicator's error, a BackendError, or an OperationTimeoutError (`what` did not end).
  void settle(const Use& use, Result result, std::string_view what, Deadline deadline, const ErrorContext& context);
  /// What NCCL has found out by itself meanwhile: a PeerLostError or BackendError; null if nothing.
  std::exception_ptr async_error(const Use& use, const ErrorContext& context) const;

  bool is_broken() const noexcept { return is_broken_.load(std::memory_order_acquire); }
  std::exception_ptr error() const;
  /// The first error counts.
  void break_with(std::exception_ptr error);

  /// Ends everything it has on the device. Waits a while for that; NCCL may take longer, and does so apart.
  void abort() noexcept;
  /// In good order, with the others; as abort() if they do not come before the deadline.
  void destroy(Deadline deadline);

  /// Called by all ranks; null for those without a color.
  CommunicatorPtr split(int color, const Place& place, Config config, Deadline deadline);
  /// Called by those that stay, of a communicator that may be broken. It is gone afterwards.
  CommunicatorPtr shrink(std::span<const int> excluded, const Place& place, Config config, Deadline deadline);

 private:
  /// Where NCCL puts the handle of a child: from a thread of its own, some time after the call that asked for it has
  /// returned and even after the parent said that it is through. So the place outlives a caller that gave up.
  class ChildPlace {
   public:
    ChildPlace() = default;
    ~ChildPlace();
    ChildPlace(const ChildPlace&) = delete;
    ChildPlace& operator=(const ChildPlace&) = delete;
    Comm** address() const { return place_.get(); }
    Comm* get() const { return std::atomic_ref(*place_).load(std::memory_order_acquire); }

   private:
    std::unique_ptr<Comm*> place_ = std::make_unique<Comm*>(nullptr);
  };
  /// Null if it is not there when the deadline comes or `is_enough` says stop.
  static Comm* await_child(const ChildPlace& place, Deadline deadline, const std::function<bool()>& is_enough);
  std::exception_ptr failure(Result result, std::string_view what, Comm* comm, const ErrorContext& context) const;
  /// Polls until it is no longer in progress, or `is_enough` says stop.
  Result poll(Comm* comm, Deadline deadline, const std::function<bool()>& is_enough) const;
  void abort_apart();
  /// The handle, which is nobody's afterwards; null if it is gone.
  Comm* release();
  ErrorContext context_of(std::string_view op) const { return {.group = place_.group, .op = std::string(op)}; }

  const Engine& engine_;
  const cuda::ContextPtr context_;
  const Place place_;

  Turn turn_;
  std::atomic<Comm*> comm_;
  std::atomic<bool> is_broken_{false};
  mutable std::mutex mutex_;
  std::exception_ptr error_;  ///< under mutex_
};

}  // namespace cohort::nccl
