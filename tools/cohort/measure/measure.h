// SPDX-License-Identifier: BSD-3-Clause
//
// How a command is measured, on every system alike and by all of its ranks together:
//
//   1. once, cold; then the warm-up
//   2. a short run that finds how many operations make a sample last long enough (Command::batch 0)
//   3. for each sample: a barrier, a look at the clock, the operations back to back, a look at the clock
//   4. of all ranks' samples the slowest; then, where asked for, one more operation on known data is checked
//
// Arrays of 16 KiB and more are written, and results read, by their rank before each operation, which is then timed by
// itself. Repeated on memory that nobody touches in between, an algorithm in which a rank combines the same slice of
// all ranks' memory each time would find it all in its own cache, and look several times faster than in any program.
// (Where a batch was asked for, or operations that do not block, they run back to back on untouched memory.)
//
// Decisions that depend on a time are made from the slowest rank's, so that all ranks make the same.
#pragma once

#include "measure/command.h"
#include "measure/system.h"

namespace cohort::bench {

/// Called by every rank with the same command; all return the same answer. What the system throws is passed on.
Answer measure(System& system, const Command& command);

}  // namespace cohort::bench
