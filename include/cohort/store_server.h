// SPDX-License-Identifier: BSD-3-Clause
//
// The server behind TcpStore: one thread, one event loop, any number of clients. A TcpStore with is_host starts one by
// itself; a launcher whose store is to outlive every rank runs its own:
//
//   cohort::StoreServer server({.endpoint = cohort::Endpoint::tcp("127.0.0.1", 0), .secret = secret});
//   std::cout << to_string(server.endpoint());        // with the port that the kernel chose
//
// Every client has to authenticate with the job's secret before the server reads anything else from it
// (docs/security.md). The server binds the address it is given and no other.
#pragma once

#include <cohort/endpoint.h>
#include <cohort/env.h>
#include <cohort/export.h>
#include <cohort/secret.h>
#include <cohort/timeout.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

/// Limits are checked before anything is allocated for a request. A request over a limit is refused; a frame that is
/// too large closes the connection that sent it, and no other.
struct StoreLimits {
  std::uint32_t key = 8U << 10U;                   ///< bytes in a key
  std::uint32_t value = 64U << 20U;                ///< bytes in a value
  std::uint32_t frame = 128U << 20U;               ///< bytes in a request or a reply
  std::uint32_t keys = 128U << 10U;                ///< keys in one request
  std::size_t connections = 1U << 17U;             ///< open at a time; further ones are refused
  std::size_t unauthenticated_connections = 8192;  ///< open at a time and not authenticated yet
  std::size_t memory = std::size_t{4} << 30U;      ///< bytes that clients make the server hold (docs/security.md)
};

/// PEM files. Both sides present a certificate of this authority, and the client checks the server's name.
struct TlsOptions {
  std::string ca_file{};
  std::string cert_file{};
  std::string key_file{};
  std::string server_name{};  ///< client only: the name to check; empty: the host it connects to
};

/// The options that COHORT_TLS_* give; nullopt if none of them is set. Throws ValueError if only some are.
COHORT_API std::optional<TlsOptions> tls_options(const Env& env);

struct StoreServerOptions {
  Endpoint endpoint{};
  /// A listening socket to use instead of binding one. With a TCP endpoint its port must be the endpoint's, unless that
  /// is 0.
  int listen_fd = -1;
  std::optional<Secret> secret{};
  /// Allows a TCP server that other hosts can reach to run without a secret.
  bool insecure = false;
  std::optional<TlsOptions> tls{};
  /// Connections from other jobs are refused. This matters where there is no secret to tell jobs apart.
  std::string job_id{};
  StoreLimits limits{};
  /// How long a client may take to authenticate before its connection is closed.
  std::chrono::milliseconds handshake_timeout{1000};
};

class COHORT_API StoreServer {
 public:
  /// The server is listening when the constructor returns. Throws SocketError if the address is taken, and ValueError
  /// if other hosts can reach the address and there is neither a secret nor `insecure`.
  explicit StoreServer(StoreServerOptions options);
  /// Closes all connections; clients that wait get a NetworkError.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  const Endpoint& endpoint() const;

  /// How many workers have joined since the start, and the ranks they claimed.
  struct Joined {
    std::size_t workers = 0;
    std::vector<int> ranks{};
  };
  /// Returns when `workers` have joined or the timeout has passed.
  Joined wait_for_workers(std::size_t workers, Timeout timeout = no_timeout);

  /// Returns true when no connection but the host's own is left, and false if the timeout passed first.
  enum class Clients : std::uint8_t { all, of_other_processes };
  bool wait_until_left(Timeout timeout = no_timeout, Clients clients = Clients::all);

  struct Stats {
    std::size_t connections = 0;      ///< open and authenticated
    std::size_t unauthenticated = 0;  ///< open and not authenticated yet
    std::uint64_t accepted = 0;       ///< since the start
    std::uint64_t rejected = 0;       ///< since the start: failed or unfinished handshakes, broken frames, over a limit
    std::size_t keys = 0;
    std::size_t bytes = 0;  ///< what counts against the memory limit
  };
  Stats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort
