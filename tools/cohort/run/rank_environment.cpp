// SPDX-License-Identifier: BSD-3-Clause
#include "run/rank_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include "common/environment.h"

namespace cohort::tool {

std::vector<std::string> RankEnvironment::of(int local_rank, int replacement) const {
  auto variables = own_environment();
  const auto rank = fmt::to_string(world.first_rank + local_rank);
  const auto size = fmt::to_string(world.size);
  variables["RANK"] = rank;
  variables["WORLD_SIZE"] = size;
  variables["LOCAL_RANK"] = fmt::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = fmt::to_string(plan.local_size);
  variables["GROUP_RANK"] = fmt::to_string(plan.node_rank);
  variables["GROUP_WORLD_SIZE"] = fmt::to_string(plan.nodes);
  variables["ROLE_RANK"] = rank;
  variables["ROLE_WORLD_SIZE"] = size;
  variables["ROLE_NAME"] = plan.role;
  variables["MASTER_ADDR"] = plan.master_addr;
  variables["MASTER_PORT"] = fmt::to_string(world.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = fmt::to_string(attempt);
  variables["TORCHELASTIC_MAX_RESTARTS"] = fmt::to_string(plan.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = run_id;
  variables["COHORT_RUN_ID"] = run_id;
  variables["COHORT_STORE"] = store;
  variables.erase("COHORT_REPLACEMENT");
  if (replacement > 0) variables["COHORT_REPLACEMENT"] = fmt::to_string(replacement);
  if (secret_file.empty()) {
    variables.erase("COHORT_SECRET_FILE");
  } else {
    variables["COHORT_SECRET_FILE"] = secret_file;
  }
  // Where this launcher itself runs under torchrun: its store is not the one at MASTER_PORT any more.
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  // On a pseudo-terminal programs would colour what nobody sees on a terminal.
  const bool is_shown = (plan.on_console[static_cast<std::size_t>(local_rank)] & standard_output) != 0;
  if (plan.uses_pty && !(is_shown && ::isatty(STDOUT_FILENO) == 1)) {
    variables["TERM"] = "dumb";
    variables["NO_COLOR"] = "1";
  }
  if (plan.env.text("OMP_NUM_THREADS").empty()) variables["OMP_NUM_THREADS"] = fmt::to_string(threads);
  return environment_entries(variables);
}

}  // namespace cohort::tool
