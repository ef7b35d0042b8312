// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>

#include <condition_variable>
#include <mutex>

namespace cohort {

/// Waits until the predicate holds, and returns whether that was before the deadline.
template <class Predicate>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline,
                Predicate predicate) {
  if (!deadline.is_never()) return changed.wait_until(lock, deadline.when(), predicate);
  changed.wait(lock, predicate);
  return true;
}

}  // namespace cohort
