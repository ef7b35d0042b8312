// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>

#include <chrono>

namespace cohort {

/// For a request to a store that waits for nobody: until the deadline, but with time for the answer even if the
/// deadline has passed, because others depend on how an agreement is settled.
inline Deadline request_deadline(Deadline deadline) {
  constexpr std::chrono::milliseconds enough{2000};
  return deadline.remaining() > enough ? deadline : Deadline::after(enough);
}

}  // namespace cohort
