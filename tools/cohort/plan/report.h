// SPDX-License-Identifier: BSD-3-Clause
//
// What `cohort plan` prints, writes and draws.
#pragma once

#include <cohort/torch/recorded_step.h>

#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/forecast.h"
#include "plan/step_model.h"

namespace cohort::plan {

/// What a rank communicates in a step, for each group (a dimension of a mesh has one) and operation.
std::string communication_table(const RecordedStep& step, const StepModel& model);

/// One line that says what the cluster is.
std::string describe(const Cluster& cluster);

std::string forecast_table(const StepModel& model, const std::vector<WorldForecast>& forecasts);

/// Step time over the number of ranks, and over the size of buckets for each number of ranks.
std::string forecast_picture(const std::string& name, const std::vector<WorldForecast>& forecasts);

struct PlannedStep {
  std::string file;
  RecordedStep step;
  StepModel model;
  std::vector<WorldForecast> forecasts;  ///< empty without a cluster
};
std::string to_json(const std::vector<PlannedStep>& steps);

}  // namespace cohort::plan
