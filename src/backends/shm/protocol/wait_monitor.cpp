// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/protocol/wait_monitor.h"

#include <fmt/format.h>
#include <sched.h>

namespace cohort::shm {

namespace {

/// How long a rank yields the processor before it sleeps.
constexpr std::chrono::milliseconds yield_time{1};

}  // namespace

Pace WaitMonitor::after_spinning() {
  engine_.check(call_);
  const auto deadline = call_.deadline();
  const auto now = Deadline::Clock::now();
  if (sleeps_from_ == Deadline::Clock::time_point{}) sleeps_from_ = now + yield_time;
  if (now < sleeps_from_ && now < deadline.when()) {
    ::sched_yield();
    return Pace::look;
  }
  goes_on();
  if (check()) return Pace::look;
  if (now >= deadline.when()) give_up();
  return Pace::sleep;
}

bool WaitMonitor::check() {
  engine_.check(call_);
  const auto failure = engine_.find_failure(awaited_, kind_);
  if (failure && looks_again_) engine_.fail(*failure, call_);
  looks_again_ = failure.has_value();
  return looks_again_;
}

void WaitMonitor::give_up() {
  if (kind_ == Engine::Wait::message) give_up_on_message();
  const auto chain = engine_.waiting().chain(engine_.furthest_behind(awaited_));
  const int culprit = chain.back();
  const auto whom = chain.size() > 1 ? fmt::format("; rank {}{}", chain.front(), describe_rest(chain)) : "";
  engine_.fail(
      {.kind = ErrorKind::timeout,
       .rank = culprit,
       .reporter = engine_.rank(),
       .text = fmt::format("rank {} gave up on {} #{} after {} ms: {}{}", engine_.rank(), to_string(call_.op()),
                           call_.sequence(), call_.timeout().count(), engine_.describe_progress(culprit), whom)},
      call_);
}

void WaitMonitor::give_up_on_message() {
  long_wait_.gave_up();
  const auto chain = engine_.waiting().chain(awaited_);
  auto context = engine_.context(call_);
  if (awaited_ >= 0) context.rank = chain.back();
  const auto whom = awaited_ < 0 ? std::string("any rank") : fmt::format("rank {}", awaited_);
  const bool sends = call_.op() == OpType::send;
  throw OperationTimeoutError(
      fmt::format("rank {} gave up on {} {} after {} ms: {} has not {}{}", engine_.rank(),
                  sends ? "sending to" : "receiving from", whom, call_.timeout().count(), whom,
                  sends ? "received it" : "sent it",
                  chain.size() > 1 ? fmt::format("; rank {}{}", awaited_, describe_rest(chain)) : ""),
      std::move(context));
}

}  // namespace cohort::shm
