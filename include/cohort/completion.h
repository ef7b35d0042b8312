// SPDX-License-Identifier: BSD-3-Clause
//
// For backends whose operations are ordered on a stream: what happens on a device after the call that asked for it has
// returned. ProcessGroup hands such a backend an OnStream with each call. The backend enqueues the operation, leaves a
// Completion there, and tells the CompletionHandler once it knows how the operation ended:
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

/// Any thread may call any of these at any time.
class COHORT_API Completion {
 public:
  virtual ~Completion() = default;
  /// Whether it has ended, well or not. Never blocks, and never asks the device about a stream that is being captured.
  virtual bool is_done() = 0;
  /// What `stream` is given from now on runs after the operation; the host does not wait. Throws an error known by now.
  virtual void order(void* stream) = 0;
  /// Blocks the host; false if the deadline came first. Throws nothing: the CompletionHandler is told how it ended.
  virtual bool wait(Deadline deadline) = 0;
  /// How long the device took, where the backend measures that; nullopt before the end.
  virtual std::optional<std::chrono::nanoseconds> duration() { return std::nullopt; }
};

/// Told once how an operation ended; holds what keeps its memory alive until then.
class COHORT_API CompletionHandler {
 public:
  virtual ~CompletionHandler() = default;
  virtual void ended(std::exception_ptr error) noexcept = 0;
};

/// The part of a Call that concerns device memory.
struct OnStream {
  void* stream = nullptr;  ///< whose order counts: a cudaStream_t; null: the null stream
  bool is_async = false;   ///< the stream goes on beside the operation, until Work::wait()
  std::shared_ptr<CompletionHandler> handler{};
  std::shared_ptr<Completion> completion{};  ///< set by the backend; null: it has succeeded already
};

}  // namespace cohort
