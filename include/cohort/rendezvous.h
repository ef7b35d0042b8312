// SPDX-License-Identifier: BSD-3-Clause
//
// Rendezvous: how the processes of a job find each other. Returns when all of them are there, with a store that only
// this rendezvous uses.
//
//   auto [store, rank, size] = cohort::rendezvous("env://");                              // what the launcher set
//   auto by_address = cohort::rendezvous("tcp://10.0.0.1:29500", {.rank = 1, .size = 4});
//   auto by_file = cohort::rendezvous("file:///shared/job17?rank=1&world_size=4");
//
// env:// works under cohort run, torchrun, Open MPI, MPICH, SLURM and Kubernetes (launch.h), or with RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT set by hand. Where the store is:
// - the launcher's, under cohort run;
// - on one host: a unix socket named after user and job, hosted by rank 0; the kernel vouches for the user;
// - on several hosts: a TCP port of rank 0's host, with the secret in COHORT_SECRET_FILE (docs/security.md).
// Rank 0, where it hosts, stays at the end until the others have left.
//
// Every rendezvous sees keys of its own, also two at a time in one job: its prefix is the number of rendezvous this
// rank began before on that store, so all ranks must begin theirs in the same order; concurrent ones take a name.
#pragma once

#include <cohort/env.h>
#include <cohort/export.h>
#include <cohort/store.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

struct RendezvousOptions {
  /// Override, or stand in for, the URL's query; a value given in both places is an AssertionError.
  std::optional<int> rank{};
  std::optional<int> size{};
  /// For the whole of it: connecting, and all ranks arriving. 0 is a ValueError.
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  /// Tells concurrent rendezvous of one job apart; all ranks give the same.
  std::string name{};
  /// The environment to look at; nothing: the process's.
  std::optional<Env> env{};
};

struct RendezvousResult {
  StorePtr store;
  int rank = 0;
  int size = 1;
};

/// ValueError: a part of the URL or a variable is missing, empty or malformed; names it. Error: unknown scheme.
/// TimeoutError: no store. StoreTimeoutError: not all ranks came; names the missing ones.
COHORT_API RendezvousResult rendezvous(std::string_view url, RendezvousOptions options = {});

/// What a scheme does: finds rank, size and a store for them. Prefix and waiting for all ranks are done afterwards.
struct RendezvousRequest {
  std::string url{};
  std::optional<int> rank{};  ///< from options or query
  std::optional<int> size{};
  Deadline deadline = Deadline::never();
  std::chrono::milliseconds timeout{};
  Env env{};
};
using RendezvousHandler = std::function<RendezvousResult(const RendezvousRequest&)>;

/// Adds a scheme ("consul" for consul://...). One that is there already is an Error.
COHORT_API void register_rendezvous_handler(std::string scheme, RendezvousHandler handler);

}  // namespace cohort
