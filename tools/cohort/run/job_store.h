// SPDX-License-Identifier: BSD-3-Clause
//
// The job's store as the launcher has it: hosted here on one host and on host 0 of several, so that no rank's death
// takes it away.
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
  /// Listens when it returns, where this host is the one to. ValueError and SocketError as StoreServer has them.
  explicit JobStore(const LaunchPlan& plan);

  /// Names the job to the store; on several hosts as given, maybe empty.
  const std::string& run_id() const { return run_id_; }
  /// COHORT_STORE for the ranks.
  std::string address() const { return to_string(client_.endpoint); }
  /// COHORT_SECRET_FILE for the ranks; empty: none.
  const std::string& secret_file() const { return secret_file_; }
  /// How to connect to it.
  const TcpStoreOptions& client() const { return client_; }

  /// Where it is hosted here: stays until the other hosts' launchers have left, or the deadline.
  void wait_until_left(Deadline deadline);

 private:
  void host_for_one();
  void prepare_for_several(const LaunchPlan& plan);

  std::string run_id_;
  std::string secret_file_;
  TcpStoreOptions client_;
  /// On one host: nothing but this process holds the secret, and it is gone with it.
  FileDescriptor secret_memory_;
  std::unique_ptr<StoreServer> server_;
};

}  // namespace cohort::tool
