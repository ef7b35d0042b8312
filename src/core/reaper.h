// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <thread>

namespace cohort {

/// Joins `thread` now. If it is the calling thread, because the object that owns it is being destroyed on it, the
/// thread is joined later: by the next call on another thread, or when the process exits.
void join_now_or_later(std::thread thread);

}  // namespace cohort
