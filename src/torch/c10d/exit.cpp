// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/exit.h"

#include <cohort/torch/c10d.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "torch/c10d/completion_threads.h"

namespace cohort {

namespace {

/// A thread that was about to return to its caller gets this long to arrive there.
constexpr std::chrono::milliseconds arrival{5};

/// Process-wide: the thread that has ended the run time; none until then.
std::atomic<std::thread::id> ended_by;

}  // namespace

bool has_ended_for_c10d() noexcept {
  return ended_by.load(std::memory_order_relaxed) != std::thread::id();
}

Caller::~Caller() {
  const auto who = ended_by.load(std::memory_order_relaxed);
  if (who == std::thread::id() || who == std::this_thread::get_id()) return;
  for (;;) ::pause();  // until the process has ended
}

void prepare_c10d_for_exit(std::chrono::milliseconds timeout) {
  ended_by = std::this_thread::get_id();
  CompletionThreads::instance()->stop(Deadline::after(timeout));
  std::this_thread::sleep_for(arrival);
}

}  // namespace cohort
