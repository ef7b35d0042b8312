// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>

#include <functional>

namespace cohort::nccl {

/// Runs `body` on a thread of its own and waits for it until the deadline: for calls into NCCL that may never return
/// (ncclCommAbort waits for kernels and peers). False: it is still at it, and is left to it; it must hold what it uses.
bool run_apart(std::function<void()> body, Deadline deadline);

}  // namespace cohort::nccl
