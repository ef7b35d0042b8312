// SPDX-License-Identifier: BSD-3-Clause
//
// The environment of a rank: the launcher's own, with the variables that tell the rank its place in the job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/launch_plan.h"

namespace cohort::tool {

/// This host's place in the job.
struct World {
  int size = 1;
  int first_rank = 0;  ///< of this host's ranks
  std::uint16_t master_port = 0;
};

struct RankEnvironment {
  const LaunchPlan& plan;
  const World& world;
  int attempt = 0;
  int threads = 1;
  std::string run_id{};
  std::string store{};
  std::string secret_file{};

  /// NAME=value for exec. `replacement` counts the processes that have had this rank before.
  std::vector<std::string> of(int local_rank, int replacement) const;
};

}  // namespace cohort::tool
