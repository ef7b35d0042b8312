// SPDX-License-Identifier: BSD-3-Clause
//
// One rank's end of an NCCL communicator. It is non-blocking, so that every wait can be given up, is used by one thread
// at a time, and is ended exactly once: by destroy() in good order, or by abort().
//
// A communicator that broke stays broken: everyone who wants to use it gets the first error.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "backends/common/failure.h"
#include "backends/cuda/objects.h"
#include "backends/nccl/engine_interface.h"
#include "core/timed_mutex.h"

namespace cohort::nccl {

class Communicator;
using CommunicatorPtr = std::shared_ptr<Communicator>;

class Communicator {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    std::string group{};  ///< id of the group, for errors
  };

  /// Called by all ranks with the id that one of them got from new_id(). Throws OperationTimeoutError if the others do
  /// not call it in time, and the reason if there is a failure before.
  static CommunicatorPtr create(const Engine& engine, const cuda::ContextPtr& context, const Place& place,
                                const UniqueId& id, Config config, Deadline deadline,
                                const FailureCheck& failure_check);
  static UniqueId new_id(const Engine& engine);
  /// Takes ownership of a handle.
  Communicator(const Engine& engine, cuda::ContextPtr context, Place place, Comm* comm)
      : engine_(engine), context_(std::move(context)), place_(std::move(place)), comm_(comm) {}
  /// Aborts it if it has not been ended before.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Place& place() const noexcept { return place_; }

  /// The turn to use the communicator, for a scope.
  class Use {
   public:
    Comm* get() const noexcept { return comm_; }

    Use(Communicator& communicator, Deadline deadline);
    bool is_held() const { return static_cast<bool>(holder_); }

   private:
    TimedLock holder_;
    Comm* comm_ = nullptr;
  };
  /// Throws the error if it is broken, and OperationTimeoutError if it is not free in time.
  std::unique_ptr<Use> use(Deadline deadline, const ErrorContext& context);
  /// Null if it is in use or broken.
  std::unique_ptr<Use> try_use();

  /// Handles the result of a call into NCCL: while it is in progress, waits for its end. Throws what went wrong: the
  /// communicator's error, a BackendError, or an OperationTimeoutError if `what` did not end in time.
  void settle(const Use& use, Result result, std::string_view what, Deadline deadline, const ErrorContext& context);
  /// What NCCL has detected asynchronously: a lost peer or an error of the backend; nullopt if there is nothing.
  std::optional<Failure> async_failure(const Use& use) const;

  bool is_broken() const noexcept { return is_broken_.load(std::memory_order_acquire); }
  std::exception_ptr error() const;
  /// Only the first error counts.
  void break_with(std::exception_ptr error);

  /// Ends everything it has on the device. Waits for that for a while; if NCCL takes longer, it continues on another
  /// thread.
  void abort() noexcept;
  /// Ends it in good order, together with the other ranks; aborts it if they do not call it before the deadline.
  void destroy(Deadline deadline);

  /// Called by all ranks; returns null for those without a color.
  CommunicatorPtr split(int color, const Place& place, Config config, Deadline deadline);
  /// Called by the ranks that stay; the communicator may be broken, and cannot be used afterwards.
  CommunicatorPtr shrink(std::span<const int> excluded, const Place& place, Config config, Deadline deadline);

 private:
  /// Where NCCL stores the handle of a child: it does so from a thread of its own, some time after the call that
  /// requested it has returned and even after the parent has reported completion. The place therefore outlives a caller
  /// that gave up.
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
  /// Null if it has not been stored by the deadline, or when `is_enough` returns true.
  static Comm* await_child(const ChildPlace& place, Deadline deadline, const std::function<bool()>& is_enough);
  Failure failure(Result result, std::string_view what, Comm* comm) const;
  /// Polls until the communicator is no longer in progress, the deadline has passed, or `is_enough` returns true.
  Result poll(Comm* comm, Deadline deadline, const std::function<bool()>& is_enough) const;
  void abort_apart();
  /// Takes the handle out, so that nobody else uses it; null if that was done before.
  Comm* release();
  ErrorContext context_of(std::string_view op) const { return {.group = place_.group, .op = std::string(op)}; }

  const Engine& engine_;
  const cuda::ContextPtr context_;
  const Place place_;

  TimedMutex turn_;
  std::atomic<Comm*> comm_;
  std::atomic<bool> is_broken_{false};
  mutable std::mutex mutex_;
  std::exception_ptr error_;  ///< protected by mutex_
};

}  // namespace cohort::nccl
