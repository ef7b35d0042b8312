// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "torch/capture/program.h"

namespace cohort::recording {

/// The wait for the asynchronous collective on a group: it uses the collective's memory, which must exist until then.
Instruction wait_for(const Instruction& collective);

/// Adds a wait for each asynchronous collective that the step has not waited for itself (a continuation did, or
/// nobody): before the first instruction that uses memory which it writes, or writes memory which it reads, and at the
/// end of the step for the rest.
void add_missing_waits(Program& program);

}  // namespace cohort::recording
