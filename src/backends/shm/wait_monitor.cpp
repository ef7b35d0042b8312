// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/wait_monitor.h"

#include <fmt/format.h>

namespace cohort::shm {

Pace WaitMonitor::after_spinning() {
  engine_.check(call_);
  const auto deadline = call_.deadline();
  const auto now = Deadline::Clock::now();
  if (naps_from_ == Deadline::Clock::time_point{}) naps_from_ = now + patience;
  if (now < naps_from_ && now < deadline.when()) {
    ::sched_yield();
    return Pace::look;
  }
  long_wait_.goes_on(peer_);
  if (const auto trouble = engine_.trouble(peer_, Engine::Wait::collective)) {
    if (looked_again_) engine_.fail(*trouble, call_);
    looked_again_ = true;
    return Pace::look;
  }
  if (now >= deadline.when()) give_up();
  return Pace::sleep;
}

void WaitMonitor::give_up() {
  const auto chain = engine_.waiting().chain(engine_.furthest_behind(peer_));
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

}  // namespace cohort::shm
