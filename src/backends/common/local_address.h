// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>
#include <cohort/env.h>
#include <cohort/store.h>

#include <string>

namespace cohort {

/// The numeric address at which other hosts of the job reach this one: that of the interface named in
/// GLOO_SOCKET_IFNAME, else of the one that leads to the job's store, else loopback. A ValueError for an interface that
/// is not there or has no address lists those that do.
std::string local_address(const Env& env, const StorePtr& store, Deadline deadline);

}  // namespace cohort
