// SPDX-License-Identifier: BSD-3-Clause
//
// The interface between ProcessGroup and backends whose operations are ordered on a stream, and therefore end on the
// device after the call has returned. ProcessGroup passes such a backend an OnStream with each call. The backend
// enqueues the operation, stores a Completion in the OnStream, and notifies the CompletionHandler once it knows how the
// operation ended:
//
//   class Mine : public cohort::Backend {
//     using Backend::Backend;
//     void all_reduce(const cohort::Operation& op, cohort::Call& call) override {
//       auto& on = *call.on_stream();
//       auto pending = std::make_shared<Pending>(on.handler);     // a Completion of your own
//       launch(op, on.stream, *pending);                          // does not wait for the device
//       on.completion = pending;
//     }                                                           // later: handler->ended(nullptr), or an error
//   };
#pragma once

#include <cohort/deadline.h>
#include <cohort/export.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>

namespace cohort {

/// All functions may be called from any thread at any time.
class COHORT_API Completion {
 public:
  virtual ~Completion() = default;
  /// Whether the operation has ended, with success or with an error. Never blocks, and never queries the device about a
  /// stream that is being captured.
  virtual bool is_done() = 0;
  /// Makes work that is enqueued on `stream` from now on run after the operation; the host does not wait. Throws the
  /// operation's error if it is already known.
  virtual void order(void* stream) = 0;
  /// Blocks the host until the operation has ended. Returns false if the deadline passes first. Does not throw the
  /// operation's error; the CompletionHandler gets it.
  virtual bool wait(Deadline deadline) = 0;
  /// How long the device took. nullopt if the operation has not ended or the backend does not measure it.
  virtual std::optional<std::chrono::nanoseconds> duration() { return std::nullopt; }
};

/// Notified once of how an operation ended. Keeps the operation's memory alive until then.
class COHORT_API CompletionHandler {
 public:
  virtual ~CompletionHandler() = default;
  virtual void ended(std::exception_ptr error) noexcept = 0;
};

/// The part of a Call that concerns device memory.
struct OnStream {
  void* stream = nullptr;  ///< the cudaStream_t that the operation is ordered on; null: the null stream
  bool is_async = false;   ///< the stream does not wait for the operation until Work::wait()
  std::shared_ptr<CompletionHandler> handler{};
  std::shared_ptr<Completion> completion{};  ///< set by the backend; null: the operation has already succeeded
};

}  // namespace cohort
