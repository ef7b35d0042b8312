// SPDX-License-Identifier: BSD-3-Clause
//
// Where the store of a launched job is, who hosts it and what protects it: decided from the environment alone, the same
// on every rank, before anything is opened.
#pragma once

#include <cohort/endpoint.h>
#include <cohort/env.h>
#include <cohort/launch.h>

#include <string>

namespace cohort {

struct StorePlan {
  Endpoint endpoint;
  bool launcher_hosts = false;  ///< else rank 0 does
  std::string job_id;
  std::string secret_file;  ///< empty: none
  bool insecure = false;
};

/// ValueError: an address, a port or a secret is needed and not given; says which and how.
StorePlan plan_store(const Launch& launch, const Env& env);

}  // namespace cohort
