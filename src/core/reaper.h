// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <thread>

namespace cohort {

/// Joins `thread` now, or, if that is the calling thread itself (an object that owns a thread was destroyed on it),
/// some time later, at the latest when the process exits.
void join_now_or_later(std::thread thread);

}  // namespace cohort
