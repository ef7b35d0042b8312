// SPDX-License-Identifier: BSD-3-Clause
//
// Decides where the store of a launched job is, who hosts it and what protects it. The decision uses the environment,
// and the job's secret where there is one, before anything else is opened, and is the same on every rank.
#pragma once

#include <cohort/endpoint.h>
#include <cohort/env.h>
#include <cohort/launch.h>

#include <string>

namespace cohort {

struct StorePlan {
  Endpoint endpoint;
  bool launcher_hosts = false;  ///< otherwise rank 0 does
  std::string job_id;
  std::string secret_file;  ///< empty: no secret
  bool insecure = false;
};

/// Throws a ValueError that says what to set if an address, a port or a secret is needed and not given.
StorePlan plan_store(const Launch& launch, const Env& env);

}  // namespace cohort
