// SPDX-License-Identifier: BSD-3-Clause
//
// The server behind TcpStore: one thread, one event loop, any number of clients. TcpStore starts one by itself where it
// is asked to host; a launcher that wants the store to outlive every rank runs its own:
//
//   cohort::StoreServer server({.endpoint = cohort::Endpoint::tcp("127.0.0.1", 0), .secret = secret});
//   std::cout << to_string(server.endpoint());        // with the port that was chosen
//
// Who connects proves the job's secret before anything else is read (docs/security.md). The server binds the address it
// is given and no other.
#pragma once

#include <cohort/deadline.h>
#include <cohort/endpoint.h>
#include <cohort/env.h>
#include <cohort/export.h>
#include <cohort/secret.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

/// Checked before anything is allocated for a request. A request over a limit is refused; an oversized frame ends the
/// connection that sent it, and no other.
struct StoreLimits {
  std::uint32_t key = 8U << 10U;                   ///< bytes of a key
  std::uint32_t value = 64U << 20U;                ///< bytes of a value
  std::uint32_t frame = 128U << 20U;               ///< bytes of a request or a reply
  std::uint32_t keys = 128U << 10U;                ///< keys in one request
  std::size_t connections = 1U << 17U;             ///< at a time; further ones are told so and closed
  std::size_t unauthenticated_connections = 8192;  ///< of these, ones that have not authenticated themselves yet
  std::size_t memory = std::size_t{4} << 30U;      ///< bytes of keys, values and what is in transit
};

/// PEM files. Both ends show a certificate of this authority; the client also checks the server's name.
struct TlsOptions {
  std::string ca_file{};
  std::string cert_file{};
  std::string key_file{};
  std::string server_name{};  ///< client: the name to check; empty: the host connected to
};

/// What COHORT_TLS_* say; nothing: no TLS. Some but not all of them is a ValueError.
COHORT_API std::optional<TlsOptions> tls_options(const Env& env);

struct StoreServerOptions {
  Endpoint endpoint{};
  /// A listening socket to adopt instead of binding; with a TCP endpoint its port must be the endpoint's (unless 0).
  int listen_fd = -1;
  std::optional<Secret> secret{};
  /// Lets a TCP server beyond loopback run without a secret.
  bool insecure = false;
  std::optional<TlsOptions> tls{};
  /// Connections of another job are turned away; matters where there is no secret to tell jobs apart.
  std::string job_id{};
  StoreLimits limits{};
  /// From accept to proof; at most this long does a stranger hold a connection.
  std::chrono::milliseconds handshake_timeout{1000};
};

class COHORT_API StoreServer {
 public:
  /// Listens when it returns. SocketError if the address is taken; ValueError for an address beyond loopback with
  /// neither a secret nor `insecure`.
  explicit StoreServer(StoreServerOptions options);
  /// Closes all connections; clients that wait get an error.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  const Endpoint& endpoint() const;

  /// How many workers have ever joined, with the ranks they claimed.
  struct Joined {
    std::size_t workers = 0;
    std::vector<int> ranks{};
  };
  /// Returns when `workers` have joined or the deadline has passed.
  Joined wait_for_workers(std::size_t workers, Deadline deadline);

  /// Returns true when no connection but the host's own is left, false when the deadline passed first.
  enum class Clients : std::uint8_t { all, of_other_processes };
  bool wait_until_left(Deadline deadline, Clients clients = Clients::all);

  struct Stats {
    std::size_t connections = 0;      ///< now, authenticated
    std::size_t unauthenticated = 0;  ///< now, not authenticated yet
    std::uint64_t accepted = 0;       ///< ever
    std::uint64_t rejected = 0;       ///< ever: failed or unfinished handshakes, broken frames, over a limit
    std::size_t keys = 0;
    std::size_t bytes = 0;
  };
  Stats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort
