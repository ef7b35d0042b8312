// SPDX-License-Identifier: BSD-3-Clause
//
// When the parts of a step happen on a cluster: a list schedule. The rank computes one thing after the other, in the
// order of the recording. Each group has a queue, in which its collectives run one after the other, each as long as the
// cost model says; different groups do not disturb each other. A blocking collective and a wait hold the rank up. All
// ranks are taken to be equally fast.
#pragma once

#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/step_model.h"

namespace cohort::plan {

/// In seconds.
struct Prediction {
  double step = 0;
  double compute = 0;            ///< what the rank computes, as fast as without communication
  double communication = 0;      ///< of all collectives together
  double exposed = 0;            ///< by which communication makes the step longer: step - compute
  std::vector<double> groups{};  ///< of the collectives of each group

  /// The part of communication that is hidden behind computing, from 0 to 1.
  double hidden() const;
};

/// Computing takes `compute_scale` times as long as in the recording.
Prediction predict(const StepModel& model, const Cluster& cluster, double compute_scale = 1);

}  // namespace cohort::plan
