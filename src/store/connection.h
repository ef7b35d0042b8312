// SPDX-License-Identifier: BSD-3-Clause
//
// A client's authenticated connection to a store server.
#pragma once

#include <cohort/deadline.h>
#include <cohort/endpoint.h>
#include <cohort/error.h>
#include <cohort/secret.h>
#include <cohort/store_request.h>

#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/timed_mutex.h"
#include "store/handshake.h"
#include "store/socket.h"
#include "store/stream.h"
#include "store/wire.h"

namespace cohort {

struct ConnectionOptions {
  Endpoint endpoint;
  std::optional<Secret> secret;
  bool insecure = false;
  std::shared_ptr<SSL_CTX> tls;  ///< null: no TLS
  std::string tls_name;
  std::string job_id;
  std::optional<int> rank;
  bool is_host = false;
  bool is_worker = false;
};

class StoreConnection {
 public:
  /// Connects and authenticates, and tries again until the deadline while there is no server yet. Throws TimeoutError
  /// if none appeared, and NetworkError if what listens there is not this job's store or refused the connection.
  StoreConnection(const ConnectionOptions& options, Deadline deadline);

  /// Sends a request and returns its result or throws its error. One call runs at a time; others wait for their turn. A
  /// request that still waits at the deadline is cancelled, and the connection stays usable. A server that does not
  /// even answer the cancellation is given up: the call throws StoreTimeoutError, and later ones NetworkError.
  StoreReply call(const StoreRequest& request, Deadline deadline, wire::Kind kind = wire::Kind::operation);

  void set_keepalive_timeout(std::chrono::milliseconds after) {
    cohort::set_keepalive_timeout(stream_.descriptor(), after);
  }
  /// Makes a call() that runs in another thread fail, and every later one.
  void interrupt();

 private:
  void check_limits(const StoreRequest& request) const;
  /// Receives a reply into `bytes`, which its values point into; nullopt if the deadline passed first.
  std::optional<wire::Reply> receive_reply(std::string& bytes, Deadline deadline);
  void close();
  [[noreturn]] void fail(const NetworkError& cause);

  std::string where_;
  pid_t owner_ = ::getpid();
  TimedMutex turn_;
  std::mutex closing_;  ///< so that interrupt() never uses a descriptor that has been closed and reused
  Stream stream_;
  handshake::Limits limits_;
  std::string outbox_;
};

}  // namespace cohort
