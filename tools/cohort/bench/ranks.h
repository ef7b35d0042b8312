// SPDX-License-Identifier: BSD-3-Clause
//
// The ranks of Cohort itself: started here, or by the launcher that started this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/contestant.h"
#include "bench/flags.h"

namespace cohort::bench {

/// `cohort bench --drive`: a driver (driver.h) of one backend on one kind of memory. Returns the exit code.
int drive_group(const BenchFlags& flags, const BenchPlan& plan);

/// A driver for each backend and kind of memory, in processes of their own.
std::vector<std::unique_ptr<Contestant>> start_groups(const BenchFlags& flags, const BenchPlan& plan, int ranks,
                                                      const tool::Guard& guard);

/// Under a launcher: one group for each backend, with this process as a rank.
std::vector<std::unique_ptr<Contestant>> join_groups(const BenchFlags& flags, const BenchPlan& plan, int local_rank);

}  // namespace cohort::bench
