// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/timeout.h>

#include <fmt/format.h>

namespace cohort {

void Timeout::refuse(std::chrono::milliseconds duration) {
  throw ValueError(
      fmt::format("a timeout of {} ms: it must be positive; cohort::no_timeout waits without limit", duration.count()));
}

}  // namespace cohort
