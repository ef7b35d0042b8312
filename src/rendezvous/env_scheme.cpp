// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/hash_store.h>
#include <cohort/launch.h>
#include <cohort/prefix_store.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/log_format.h"
#include "rendezvous/hosting.h"
#include "rendezvous/job_keys.h"
#include "rendezvous/schemes.h"
#include "rendezvous/store_host.h"
#include "rendezvous/store_plan.h"

namespace cohort {

namespace {

/// What the launcher set; nullopt if the process was started alone. A rank or size that the caller gave replaces RANK
/// or WORLD_SIZE.
std::optional<Launch> launch_of(const RendezvousRequest& request) {
  auto env = request.env;
  if (request.rank) env = env.with("RANK", std::to_string(*request.rank));
  if (request.size) env = env.with("WORLD_SIZE", std::to_string(*request.size));
  if (auto launch = find_launch(env)) return launch;
  // These are set for processes that are one of several: without a rank, the settings are incomplete.
  constexpr std::array<std::string_view, 6> incomplete = {"MASTER_ADDR",      "MASTER_PORT",         "LOCAL_RANK",
                                                          "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "COHORT_STORE"};
  const auto* const found = std::find_if(incomplete.begin(), incomplete.end(),
                                         [&env](std::string_view variable) { return !env.text(variable).empty(); });
  if (found == incomplete.end()) return std::nullopt;
  throw ValueError(fmt::format(
      "env:// rendezvous: {} is set, but RANK is missing or empty, and so are the variables of Open MPI, PMI "
      "and SLURM; start the program with \"cohort run -n 4 program\", set RANK, WORLD_SIZE, MASTER_ADDR and "
      "MASTER_PORT, or unset {} to run the program alone",
      *found, *found));
}

/// A process that no launcher started is a job of its own, so that a program can be tried out and debugged as it is.
RendezvousResult world_of_one(const Env& env) {
  constexpr auto text = "env://: no launcher started this process, so it is rank 0 of 1{}";
  const auto tasks = env.text("SLURM_NTASKS");
  if (tasks.empty() || tasks == "1") {
    log_info(text, "; to start several, use \"cohort run -n 4 program\"");
  } else {
    log_warn(text, fmt::format(" although SLURM_NTASKS={}; to start all of them, use srun", tasks));
  }
  return {std::make_shared<HashStore>(), 0, 1};
}

}  // namespace

RendezvousResult env_scheme(const RendezvousRequest& request) {
  const auto url = parse_rendezvous_url(request.url);
  refuse_unknown_query(url, request.url);
  const auto found = launch_of(request);
  if (!found) return world_of_one(request.env);
  const auto& launch = *found;
  const auto plan = plan_store(launch, request.env);
  log_debug("env://: rank {} of {}, started by {}; the store is at {}{}", launch.rank, launch.size,
            to_string(launch.launcher), to_string(plan.endpoint), plan.launcher_hosts ? ", the launcher's" : "");
  auto options = protected_options(request, plan.secret_file);
  options.endpoint = plan.endpoint;
  options.job_id = plan.job_id;
  options.insecure = plan.insecure;
  options.rank = launch.rank;
  const auto host = store_host("env", request.env);
  StorePtr store = launch.rank == host ? join_as_host(options)
                   : host              ? connect_to_host(options, *host)
                                       : std::make_shared<TcpStore>(options);
  // A launcher's store outlives its ranks, so this attempt must not see the keys of an earlier one.
  return {std::make_shared<PrefixStore>(attempt_prefix(launch.restart_count), std::move(store)), launch.rank,
          launch.size};
}

}  // namespace cohort
