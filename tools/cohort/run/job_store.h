// SPDX-License-Identifier: BSD-3-Clause
//
// The store of the job. The launcher hosts it (on several hosts, that of host 0 does), so that it outlives every rank.
#pragma once

#include <cohort/store_server.h>
#include <cohort/tcp_store.h>

#include <memory>
#include <optional>
#include <string>

#include "core/file_descriptor.h"
#include "run/launch_plan.h"

namespace cohort::tool {

class JobStore {
 public:
  /// Where this host is the one that hosts the store, it listens when this returns. Throws what StoreServer throws.
  explicit JobStore(const LaunchPlan& plan);

  /// The name of the job in the store; on several hosts it is the given one and may be empty.
  const std::string& run_id() const { return run_id_; }
  /// COHORT_STORE for the ranks.
  std::string address() const { return to_string(client_.endpoint); }
  /// COHORT_SECRET_FILE for the ranks; empty: none.
  const std::string& secret_file() const { return secret_file_; }
  /// How to connect to it.
  const TcpStoreOptions& client() const { return client_; }

  /// Whether ranks of this attempt wait for each other to make their first group. False if the store cannot be asked.
  bool has_unfinished_group(int attempt, int ranks) const;

  /// Where the store is hosted here: waits until the launchers of the other hosts have disconnected, or the deadline.
  void wait_until_left(Deadline deadline);

 private:
  void host_for_one();
  void prepare_for_several(const LaunchPlan& plan);

  std::string run_id_;
  std::string secret_file_;
  TcpStoreOptions client_;
  /// On one host the secret exists in this process only, and ends with it.
  FileDescriptor secret_memory_;
  std::unique_ptr<StoreServer> server_;
};

}  // namespace cohort::tool
