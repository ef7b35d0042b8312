// SPDX-License-Identifier: BSD-3-Clause
//
// Where one rank's process has the store, the others lose the store when they lose that rank.
#pragma once

#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string_view>

namespace cohort {

/// The rank whose process has the job's store; nullopt if it is elsewhere, such as in the launcher.
inline std::optional<int> store_host(std::string_view scheme, const Env& env) {
  const bool is_in_a_rank = scheme == "tcp" || (scheme == "env" && env.store.empty());
  return is_in_a_rank ? std::optional<int>(0) : std::nullopt;
}

/// Runs `step`, in which ranks wait for each other through the store. An error because the store is lost names the rank
/// that has it.
template <class Step>
auto naming_store_host(std::optional<int> host, int rank, const Step& step) {
  try {
    return step();
  } catch (const DistributedError& e) {
    const bool may_be_lost = dynamic_cast<const NetworkError*>(&e) != nullptr || e.kind() == ErrorKind::peer_lost;
    if (!host || *host == rank || !may_be_lost || e.context().rank) throw;
    auto context = e.context();
    context.rank = host;
    throw PeerLostError(
        fmt::format("rank {}, whose process has the job's store, is gone or cannot be reached: {}", *host, e.message()),
        context);
  }
}

/// Connects to the store in the process of rank `host`. An error because there is none in time names that rank.
inline StorePtr connect_to_host(const TcpStoreOptions& options, int host) {
  try {
    return std::make_shared<TcpStore>(options);
  } catch (const TimeoutError& e) {
    auto context = e.context();
    context.rank = host;
    throw TimeoutError(fmt::format("{}; the job's store is in the process of rank {}", e.message(), host), context);
  }
}

}  // namespace cohort
