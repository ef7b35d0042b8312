// SPDX-License-Identifier: BSD-3-Clause
//
// What happens on a device after the call that asked for it has returned: for backends whose operations are ordered on
// a stream. ProcessGroup hands such a backend an OnStream with each call; the backend enqueues, leaves a Completion
// there and tells the Ending once it knows how it went:
//
//   class Mine : public cohort::Backend {
//     using Backend::Backend;
//     void all_reduce(const cohort::Reduction& r, cohort::Call& call) override {
//       auto& on = *call.on_stream();
//       auto under_way = std::make_shared<UnderWay>(on.ending);   // a Completion of one's own
//       launch(r, on.stream, *under_way);                         // does not wait for the device
//       on.completion = under_way;
//     }                                                           // later: ending->ended(nullptr), or an error
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
  /// Blocks the host; false if the deadline came first. Throws nothing: how it went is the Ending's to know.
  virtual bool wait(Deadline deadline) = 0;
  /// How long the device took, where the backend measures that; nothing before the end.
  virtual std::optional<std::chrono::nanoseconds> duration() { return std::nullopt; }
};

/// Told once how an operation ended; holds what keeps its memory alive until then.
class COHORT_API Ending {
 public:
  virtual ~Ending() = default;
  virtual void ended(std::exception_ptr error) noexcept = 0;
};

/// What a call on device memory carries besides.
struct OnStream {
  void* stream = nullptr;  ///< whose order counts: a cudaStream_t; null: the null stream
  bool is_async = false;   ///< the stream goes on beside the operation, until Work::wait()
  std::shared_ptr<Ending> ending{};
  std::shared_ptr<Completion> completion{};  ///< the backend's answer; null: it has ended already, and well
};

}  // namespace cohort
