// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of a new group find each other's memory. Rank 0 of the new group, its root, makes the segment and a
// ticket, a short text with which the others find it; how the ticket reaches them differs: through a store (new_group),
// through the parent group (split), or through the memory of the group that broke (shrink).
#pragma once

#include <cohort/deadline.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backends/shm/engine.h"

namespace cohort::shm {

/// The root passes its ticket and publishes it; the others pass nothing and get it.
using ExchangeTicket = std::function<std::string(std::string_view ticket)>;

struct Bootstrap {
  std::string name{};   ///< of the backend
  std::string group{};  ///< id of the group
  int rank = 0;
  int size = 1;
  Deadline deadline = Deadline::never();
  ExchangeTicket exchange{};
  /// Asked now and then while ranks are missing: why waiting for them is in vain, if it is.
  std::function<std::optional<Failure>()> trouble{};
};

/// All or nothing: returns on every rank when all are there, or throws on every rank that came, naming who is missing
/// or what went wrong where.
using BootstrapFunction = EngineParts (*)(const Bootstrap&);

/// Ranks are processes of this host: a sealed memfd, passed over an abstract unix socket to processes of the same user.
EngineParts bootstrap_processes(const Bootstrap& bootstrap);
/// Ranks are threads of this process.
EngineParts bootstrap_threads(const Bootstrap& bootstrap);

/// Spins where every rank has a processor to itself.
WaitPolicy wait_policy(bool own_cpus);

/// A root that cannot bootstrap says so by its ticket.
std::string refusal_ticket(std::string_view why);
/// Throws if it is one.
void check_ticket(std::string_view ticket, const Bootstrap& bootstrap);

}  // namespace cohort::shm
