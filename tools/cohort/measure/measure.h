// SPDX-License-Identifier: BSD-3-Clause
//
// How a command is measured, on every system alike and by all of its ranks together:
//
//   1. one cold operation, then the warm-up
//   2. a short run that finds how many operations make a sample long enough (where Command::batch is 0)
//   3. for each sample: a barrier, then the operations back to back between two readings of the clock
//   4. the slowest rank's time of each sample; then, where asked for, the check of one more operation on known data
//
// Before each operation on 16 KiB or more, every rank writes its array and reads the last result, and the operation is
// timed on its own. If nobody touched the memory in between, an algorithm in which a rank combines the same slice of
// all ranks' memory each time would find everything in its own cache, and look several times faster than in any
// program. Where operations back to back are asked for (or a batch, or non-blocking ones), they run on untouched
// memory, as in the loops of OSU's benchmarks and nccl-tests.
//
// Decisions that depend on a time use that of the slowest rank, so that all ranks decide alike.
#pragma once

#include "measure/command.h"
#include "measure/system.h"

namespace cohort::measure {

/// Called by every rank with the same command; all return the same answer. Throws what the system throws.
Answer answer_to(System& system, const Command& command);

}  // namespace cohort::measure
