// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>
#include <cohort/env.h>
#include <cohort/store.h>

#include <string>

namespace cohort {

/// The numeric address at which other hosts of the job reach this one: the address of the interface named in
/// GLOO_SOCKET_IFNAME or, if it is not set, of the interface that leads to the job's store or, if there is none,
/// loopback. For an interface that does not exist or has no address, it throws a ValueError that lists those that do.
std::string local_address(const Env& env, const StorePtr& store, Deadline deadline);

}  // namespace cohort
