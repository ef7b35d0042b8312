// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of a new group find each other's memory. Rank 0 of the new group, the root, makes the segment and a
// ticket, a short text with which the others find it. The ticket reaches them through a store (new_group), through the
// parent group (split), or through the memory of the group that broke (shrink).
#pragma once

#include <cohort/deadline.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backends/shm/engine.h"

namespace cohort::shm {

/// The root passes its ticket, which is published; the other ranks pass an empty text and receive the ticket.
using ExchangeTicket = std::function<std::string(std::string_view ticket)>;

struct Bootstrap {
  std::string name{};   ///< name of the backend
  std::string group{};  ///< id of the group
  int rank = 0;
  int size = 1;
  Deadline deadline = Deadline::never();
  ExchangeTicket exchange{};
  /// Called now and then while ranks are missing: returns the reason if waiting for them is in vain.
  std::function<std::optional<Failure>()> failure_check{};
};

/// All or nothing: returns on every rank once all have joined, or throws on every rank that joined, naming the missing
/// ranks or the rank that failed and its error.
using BootstrapFunction = EngineParts (*)(const Bootstrap&);

/// For ranks that are processes of this host: a sealed memfd, passed over an abstract unix socket to processes of the
/// same user.
EngineParts bootstrap_processes(const Bootstrap& bootstrap);
/// For ranks that are threads of this process.
EngineParts bootstrap_threads(const Bootstrap& bootstrap);

/// For those who are to tell others which ranks are missing, before these give up themselves.
Deadline shortly_before(Deadline deadline);

/// Spins if every rank has a processor to itself.
WaitPolicy wait_policy(bool own_cpus);

/// The ticket by which a root announces that it cannot make the group.
std::string refusal_ticket(std::string_view why);
/// Throws if `ticket` is a refusal.
void check_ticket(std::string_view ticket, const Bootstrap& bootstrap);

}  // namespace cohort::shm
