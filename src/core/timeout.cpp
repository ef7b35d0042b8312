// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/timeout.h>

#include <fmt/format.h>

namespace cohort {

void Timeout::refuse(double milliseconds) {
  throw ValueError(
      fmt::format("a timeout of {:g} ms: it must be positive; cohort::no_timeout waits without limit", milliseconds));
}

}  // namespace cohort
