// SPDX-License-Identifier: BSD-3-Clause
//
// Passes over a recorded step, between its recording and its replay. Each takes a program that is right and leaves one
// that computes the same; effects.h says what they keep to.
#pragma once

#include <cohort/torch/capture_passes.h>

#include <cstddef>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// Runs the passes that are switched on, and reports those that changed something.
std::vector<PassReport> optimize(Program& program, const PassOptions& options);

PassReport remove_dead(Program& program);
PassReport merge_common(Program& program);
/// Up to `cap` bytes together.
PassReport fuse_collectives(Program& program, std::size_t cap);
PassReport overlap(Program& program);

}  // namespace cohort::recording
