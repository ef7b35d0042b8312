// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/launch.h>
#include <cohort/prefix_store.h>

#include <fmt/format.h>

#include "core/log_format.h"
#include "rendezvous/hosting.h"
#include "rendezvous/schemes.h"
#include "rendezvous/store_plan.h"

namespace cohort {

namespace {

/// What the launcher set. A rank or size that the caller gave replaces RANK or WORLD_SIZE.
Launch launch_of(const RendezvousRequest& request) {
  auto env = request.env;
  if (request.rank) env = env.with("RANK", std::to_string(*request.rank));
  if (request.size) env = env.with("WORLD_SIZE", std::to_string(*request.size));
  if (const auto launch = find_launch(env)) return *launch;
  throw ValueError(
      "env:// rendezvous: RANK is missing or empty, and so are the variables of Open MPI, PMI and SLURM; start the "
      "program with \"cohort run -n 4 program\", or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

}  // namespace

RendezvousResult env_scheme(const RendezvousRequest& request) {
  const auto url = parse_rendezvous_url(request.url);
  refuse_unknown_query(url, request.url);
  const auto launch = launch_of(request);
  const auto plan = plan_store(launch, request.env);
  log_debug("env://: rank {} of {}, started by {}; the store is at {}{}", launch.rank, launch.size,
            to_string(launch.launcher), to_string(plan.endpoint), plan.launcher_hosts ? ", the launcher's" : "");
  auto options = protected_options(request, plan.secret_file);
  options.endpoint = plan.endpoint;
  options.job_id = plan.job_id;
  options.insecure = plan.insecure;
  options.rank = launch.rank;
  const bool is_host = !plan.launcher_hosts && launch.rank == 0;
  StorePtr store = is_host ? join_as_host(options) : std::make_shared<TcpStore>(options);
  // A launcher's store outlives its ranks, so this attempt must not see the keys of an earlier one.
  return {std::make_shared<PrefixStore>(fmt::format("attempt{}", launch.restart_count), std::move(store)), launch.rank,
          launch.size};
}

}  // namespace cohort
