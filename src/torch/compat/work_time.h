// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <concepts>

namespace cohort {

/// A moment as c10d tells it to the hooks of operations: by the system's clock in libtorch 2.6, by the steady one since
/// 2.11 at the latest.
template <class Time>
Time work_time(std::chrono::steady_clock::time_point moment) {
  if constexpr (std::same_as<Time, std::chrono::steady_clock::time_point>) {
    return moment;
  } else {
    const auto ago = std::chrono::steady_clock::now() - moment;
    return Time::clock::now() - std::chrono::duration_cast<typename Time::duration>(ago);
  }
}

}  // namespace cohort
