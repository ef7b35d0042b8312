// SPDX-License-Identifier: BSD-3-Clause
//
// A client's authenticated connection to a store server.
#pragma once

#include <cohort/deadline.h>
#include <cohort/endpoint.h>
#include <cohort/error.h>
#include <cohort/secret.h>
#include <cohort/store_server.h>

#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "store/handshake.h"
#include "store/socket.h"
#include "store/stream.h"
#include "store/wire.h"

namespace cohort {

struct ConnectionOptions {
  Endpoint endpoint;
  std::optional<Secret> secret;
  bool insecure = false;
  std::shared_ptr<SSL_CTX> tls;  ///< null: none
  std::string tls_name;
  std::string job_id;
  std::optional<int> rank;
  bool is_host = false;
  bool is_worker = false;
};

/// A reply and the bytes its values point into. Moving it keeps them valid: a reply is longer than what a std::string
/// stores inside itself.
struct OwnedReply {
  std::string bytes;
  wire::Reply reply;
};

class StoreConnection {
 public:
  /// Connects and proves itself, trying again until the deadline while the server is not there yet. TimeoutError: it
  /// never came. NetworkError: somebody is there, and it is not our store or does not want us.
  StoreConnection(const ConnectionOptions& options, Deadline deadline);

  /// Sends a request and returns its reply. A request that waits is cancelled at the deadline: the reply then says so,
  /// and the connection stays good. A server that does not answer even that is given up: StoreTimeoutError, as is
  /// every later call a NetworkError.
  OwnedReply call(const wire::Request& request, Deadline deadline);

  void notice_silence(std::chrono::milliseconds after) { cohort::notice_silence(stream_.descriptor(), after); }
  /// From another thread than the one that is in call(): that one fails, as does every later one.
  void interrupt();

 private:
  void check_limits(const wire::Request& request) const;
  bool receive_reply(OwnedReply& into, Deadline deadline);
  void close();
  [[noreturn]] void fail(const NetworkError& cause);

  std::string where_;
  pid_t owner_ = ::getpid();
  std::mutex closing_;  ///< a descriptor that is closed here must not be somebody else's there
  Stream stream_;
  handshake::Limits limits_;
  std::string outbox_;
};

}  // namespace cohort
