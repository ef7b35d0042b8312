// SPDX-License-Identifier: BSD-3-Clause
//
// A store that is reached over a socket: TCP between hosts, a unix socket on one host. One process of the job, or its
// launcher, hosts the server, and all processes connect to it.
//
//   // Rank 0:
//   auto store = std::make_shared<cohort::TcpStore>(cohort::TcpStoreOptions{
//       .endpoint = cohort::Endpoint::tcp("10.0.0.1", 29500), .is_host = true, .world_size = 4, .rank = 0,
//       .secret = cohort::Secret::load("job.secret")});
//   // All other ranks: the same without is_host. They may start before rank 0 does.
//
// Client and server authenticate each other with the job's secret before anything else is sent. The rank that a client
// claims is part of it: no process can take a rank that another one holds (docs/security.md). `cohort run` and
// rendezvous() do all of this for their users.
#pragma once

#include <cohort/endpoint.h>
#include <cohort/secret.h>
#include <cohort/store.h>
#include <cohort/store_server.h>

#include <memory>
#include <optional>
#include <string>

namespace cohort {

/// The customary MASTER_PORT.
inline constexpr std::uint16_t default_store_port = 29500;

struct TcpStoreOptions {
  Endpoint endpoint = Endpoint::tcp("127.0.0.1", default_store_port);

  /// This process hosts the server. With port 0 the kernel chooses the port, and port() returns it.
  bool is_host = false;
  /// Host only: use this listening socket instead of binding one.
  int listen_fd = -1;
  /// Host only: all TcpStores of this process that host this endpoint share one server.
  bool multi_tenant = false;
  /// Host only: the destructor waits until all clients have left, at most this long. It does not wait while an
  /// exception unwinds the stack.
  std::chrono::milliseconds linger{0};

  /// The number of processes, or -1 if it is not known. 0 is a ValueError.
  int world_size = -1;
  /// Host only: the constructor waits until world_size stores, this one included, have connected.
  bool wait_for_workers = true;

  /// The rank of this process; nullopt: it claims none.
  std::optional<int> rank{};
  /// The timeout of connecting, and of calls that are given none (see set_timeout()). Must be positive.
  std::chrono::milliseconds timeout = Store::default_timeout;

  /// See StoreServerOptions.
  std::optional<Secret> secret{};
  bool insecure = false;
  std::optional<TlsOptions> tls{};
  std::string job_id{};
  StoreLimits limits{};
};

class StoreConnection;
struct ConnectionOptions;

class COHORT_API TcpStore final : public Store {
 public:
  /// Throws SocketError if the address is taken (host only), TimeoutError if no server appeared in time, NetworkError
  /// if what listens there is not this job's store or refused the connection, and StoreTimeoutError ("2/4 workers
  /// joined") if not all processes connected in time (host only).
  explicit TcpStore(TcpStoreOptions options);
  ~TcpStore() override;

  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& host() const { return endpoint_.host; }
  std::uint16_t port() const { return endpoint_.port; }
  bool is_host() const { return hosted_ != nullptr; }

  bool has_extended_api() const override { return true; }
  bool has_queues() const override { return true; }
  /// Opens a further connection under the same rank.
  StorePtr clone() override;

  /// Leaves a last will: the server sets these keys when this connection ends, however it ends, so that others learn
  /// that this process is gone. Replaces an earlier will; no keys withdraw it. If the network to this host fails, the
  /// connection counts as ended after `keepalive_timeout`, or after about a minute if that is zero.
  void set_on_disconnect(const Keys& keys, const Values& values, Timeout timeout = {},
                         std::chrono::milliseconds keepalive_timeout = {});
  /// Makes calls on this store fail once nothing has been heard from the server's host for this long.
  void set_keepalive_timeout(std::chrono::milliseconds after);
  /// Makes a call that another thread is in throw NetworkError at once, and every later call too.
  void interrupt();

 private:
  struct Hosted;
  TcpStore(std::shared_ptr<Hosted> hosted, Endpoint endpoint, std::shared_ptr<const ConnectionOptions> connect_to,
           std::chrono::milliseconds timeout);
  static std::shared_ptr<Hosted> host_server(const TcpStoreOptions& options);

  StoreReply execute(const StoreRequest& request, Deadline deadline) override;

  std::shared_ptr<Hosted> hosted_;  // must outlive the connection below
  Endpoint endpoint_;
  std::shared_ptr<const ConnectionOptions> connect_to_;
  std::unique_ptr<StoreConnection> connection_;
};

}  // namespace cohort
