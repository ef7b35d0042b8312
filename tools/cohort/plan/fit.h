// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/cost_model.h"

namespace cohort::plan {

/// This machine as a cluster of one host.
struct Fit {
  Cluster cluster{};
  int ranks = 0;
  std::vector<Sample> samples{};
  double error = 0;  ///< the median of the samples' relative errors
};

/// Measures all_reduces of 1 KiB to 64 MiB between so many ranks on this machine, as `cohort bench` does, and fits the
/// link between them to the best of five rounds. Throws an Error if they cannot be measured.
Fit fit_here(int ranks, const std::string& backend, Algorithm algorithm);

std::string to_text(const Fit& fit);

}  // namespace cohort::plan
