// SPDX-License-Identifier: BSD-3-Clause
//
// What `cohort plan` finds out about one step: predictions for several numbers of ranks and several sizes of buckets.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "plan/cluster.h"
#include "plan/schedule.h"
#include "plan/step_model.h"

namespace cohort::plan {

struct ForecastOptions {
  std::vector<int> worlds{};             ///< empty: the recorded one and its doubles
  std::vector<std::size_t> buckets{};    ///< empty: from the smallest recorded one to all gradients together
  std::optional<std::size_t> growing{};  ///< the group that grows with the world; default: the outermost
  Parts parts = Parts::shrink;
  double compute_scale = 1;
};

struct BucketForecast {
  std::size_t bytes = 0;
  Prediction prediction{};
};

struct WorldForecast {
  int world = 1;
  Prediction as_recorded{};
  std::vector<BucketForecast> buckets{};  ///< empty if the step has no buckets, or no times
  /// Null if there are none. Of equally good ones the smallest.
  const BucketForecast* best() const;
};

std::vector<WorldForecast> forecast(const StepModel& model, const Cluster& cluster, const ForecastOptions& options);

}  // namespace cohort::plan
