// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace cohort::model {

/// A stack of its own with a function running on it. Control moves from one fiber to another on one operating-system
/// thread, so an execution is deterministic and a switch costs a fraction of a microsecond.
///
/// The exception being handled is kept per operating-system thread, so a fiber must not switch inside a catch block.
class Fiber {
 public:
  /// A job runs and then returns the fiber that continues; after that, the fiber can be given another job.
  using Job = std::function<Fiber&()>;

  /// The fiber of the thread that creates it, which has a stack already.
  Fiber() = default;
  explicit Fiber(std::size_t bytes);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() = default;

  void assign(Job job) { job_ = std::move(job); }
  /// Leaves this fiber, which must be the running one, for another; returns when another fiber switches back.
  void switch_to(Fiber& next);

 private:
  static void enter();
  [[noreturn]] void run();
  void arrived();

  ucontext_t context_{};
  std::vector<std::byte> stack_;
  // What AddressSanitizer must be told about the stack that is switched to.
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  Job job_;
};

}  // namespace cohort::model
