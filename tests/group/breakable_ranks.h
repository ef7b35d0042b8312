// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks whose group breaks. They communicate through a store that does not depend on any of them.
#pragma once

#include <cohort/file_store.h>
#include <cohort/new_group.h>
#include <cohort/tcp_store.h>

#include <string>

#include "support/groups.h"
#include "support/store_host.h"
#include "support/temporary.h"

namespace cohort::test {

/// On a busy machine a deadline may be noticed late, but never early.
constexpr auto grace = std::chrono::seconds(5);

/// Engines learn about dead ranks from the store, which must be able to detect them.
inline void run_breakable_engine(const Ranks& ranks, const GroupBody& body, std::chrono::milliseconds timeout) {
  const StoreHost host;
  as_processes(ranks.size, [&](int rank) {
    name_host(rank, ranks.size, ranks.hosts);
    const auto store = std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = host.endpoint()});
    body(new_group(ranks.backend, timeout, "cpu", {}, {.store = store, .rank = rank, .size = ranks.size}));
    return 0;
  });
}

inline void run_breakable(const Ranks& ranks, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
  if (ranks.are == Ranks::Are::launched) return ranks.run(body, timeout);
  if (!ranks.are_processes()) return with_threads(ranks.size, body, timeout);
  if (ranks.backend != "shm") return run_breakable_engine(ranks, body, timeout);
  const TemporaryFolder folder;
  as_processes(ranks.size, [&](int rank) {
    const auto store = std::make_shared<FileStore>(folder / "store");
    body(new_group("shm", timeout, "cpu", {}, {.store = store, .rank = rank, .size = ranks.size}));
    return 0;
  });
}

/// Several threads of a rank use the store at the same time, so each call has a handle of its own.
inline void say(const ProcessGroupPtr& group, const std::string& what) {
  group->store()->clone()->set("said/" + what, "1");
}
inline void await(const ProcessGroupPtr& group, const std::string& what) {
  group->store()->clone()->wait({"said/" + what}, patient);
}
/// A barrier that does not involve the group.
inline void meet(const ProcessGroupPtr& group, const std::string& where) {
  if (group->store()->add("met/" + where, 1) == group->size()) say(group, "met/" + where);
  await(group, "met/" + where);
}

}  // namespace cohort::test
