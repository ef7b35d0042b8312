// SPDX-License-Identifier: BSD-3-Clause
//
// Cohort's own ranks: started here, or by whoever started this process.
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

/// Under a launcher: a group for each backend, of which this process is a rank.
std::vector<std::unique_ptr<Contestant>> join_groups(const BenchFlags& flags, const BenchPlan& plan);

}  // namespace cohort::bench
