// SPDX-License-Identifier: BSD-3-Clause
//
// A rendezvous is how the processes of a job find each other. It returns once all of them have arrived, with a store
// for the keys of this rendezvous alone.
//
//   auto [store, rank, size] = cohort::rendezvous("env://");                              // what the launcher set
//   auto by_address = cohort::rendezvous("tcp://10.0.0.1:29500", {.rank = 1, .size = 4});
//   auto by_file = cohort::rendezvous("file:///shared/job17?rank=1&world_size=4");
//
// env:// works under cohort run, torchrun, Open MPI, MPICH, SLURM and Kubernetes (launch.h), or with RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT set by hand. A process for which no launcher has set anything is a job of its own, rank 0
// of 1, with a store in its memory. Otherwise the store is
// - the launcher's own, under cohort run;
// - on one host, a unix socket that rank 0 hosts; its name contains the user and the job, and the kernel vouches for
//  the user of each process;
// - on several hosts, a TCP port on rank 0's host, with the secret in COHORT_SECRET_FILE (docs/security.md).
// If rank 0 hosts the store, it waits when it exits until the other processes have left.
//
// The keys of a rendezvous are prefixed with its number: how many times this rank has begun one on the same store. All
// ranks must therefore begin theirs in the same order. Rendezvous that run concurrently need different names.
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
  /// May be given here or in the URL's query; a value given in both places is an AssertionError.
  std::optional<int> rank{};
  std::optional<int> size{};
  /// The timeout of the whole rendezvous, from connecting until all ranks have arrived; also the timeout of the store
  /// it returns. Must be positive.
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  /// Distinguishes concurrent rendezvous of one job. All ranks give the same name.
  std::string name{};
  /// The environment to read; nullopt: that of the process.
  std::optional<Env> env{};
};

struct RendezvousResult {
  StorePtr store;
  int rank = 0;
  int size = 1;
};

/// Throws ValueError if a part of the URL or a variable is missing, empty or malformed, Error if the scheme is unknown,
/// TimeoutError if there is no store in time, StoreTimeoutError, which names the missing ranks, if not all ranks
/// arrived in time, and PeerLostError if one of them has died before.
COHORT_API RendezvousResult rendezvous(std::string_view url, RendezvousOptions options = {});

/// What the handler of a scheme is given. It returns the rank, the size and a store; rendezvous() then adds the prefix
/// and waits for all ranks.
struct RendezvousRequest {
  std::string url{};
  std::optional<int> rank{};  ///< from the options or the URL's query
  std::optional<int> size{};
  Deadline deadline = Deadline::never();
  std::chrono::milliseconds timeout{};
  Env env{};
};
using RendezvousHandler = std::function<RendezvousResult(const RendezvousRequest&)>;

/// Adds a scheme, such as "consul" for consul://... URLs. Throws Error if the scheme exists.
COHORT_API void register_rendezvous_handler(std::string scheme, RendezvousHandler handler);

}  // namespace cohort
