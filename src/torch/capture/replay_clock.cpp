// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/replay_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <cohort/error.h>

#include <algorithm>

namespace cohort::recording {

ReplayClock::ReplayClock(const Program& program) : observer_([this](const Issue& issue) { watch(issue); }) {
  for (const auto& each : program.values) {
    const c10::Device device(each.shown.device);
    if (device.is_cuda()) device_ = device;
  }
  times_.nodes.reserve(program.instructions.size());
  begin_ = Clock::now();
}

std::int64_t ReplayClock::since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

void ReplayClock::end_instruction() {
  if (device_) {
    const c10::impl::VirtualGuardImpl guard(device_->type());
    guard.synchronizeStream(guard.getStream(*device_));
  }
  const auto begin = times_.nodes.empty() ? 0 : times_.nodes.back().end;
  times_.nodes.push_back({.begin = begin, .end = since(begin_)});
}

void ReplayClock::watch(const Issue& issue) {
  // A device's operation is complete some time before anybody looks.
  if (!issue.options.async_op || device_) return;
  completions_.push_back({.instruction = times_.nodes.size(),
                          .at = issue.work.then([begin = begin_](const auto&) { return since(begin); })});
}

ReplayTimes ReplayClock::finish() {
  times_.end = since(begin_);
  // They are complete, as the step has waited for them; the thread that notes it may be a little behind.
  constexpr std::chrono::seconds enough{5};
  for (const auto& each : completions_) {
    auto& completed = times_.nodes.at(each.instruction).completed;
    try {
      completed = std::max(completed, each.at.value(enough));
    } catch (const Error&) {
      completed = -1;  // it failed, or runs on, and the step does not ask
    }
  }
  return std::move(times_);
}

}  // namespace cohort::recording
