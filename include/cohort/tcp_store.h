// SPDX-License-Identifier: BSD-3-Clause
//
// A store reached over a socket: TCP between hosts, a unix socket on one. One process hosts the server (or a launcher
// does), all connect to it.
//
//   // rank 0
//   auto store = std::make_shared<cohort::TcpStore>(cohort::TcpStoreOptions{
//       .endpoint = cohort::Endpoint::tcp("10.0.0.1", 29500), .is_host = true, .world_size = 4, .rank = 0,
//       .secret = cohort::Secret::load("job.secret")});
//   // everyone else: the same without is_host; may start before the host does
//
// Each connection proves the job's secret both ways before anything else is said, and with it the rank it claims: a
// rank that one process holds no other process gets (docs/security.md). Users of `cohort run` and of rendezvous() need
// none of this: it is done for them.
#pragma once

#include <cohort/endpoint.h>
#include <cohort/secret.h>
#include <cohort/store.h>
#include <cohort/store_server.h>

#include <memory>
#include <optional>
#include <string>

namespace cohort {

/// The port users know from elsewhere.
inline constexpr std::uint16_t default_store_port = 29500;

struct TcpStoreOptions {
  Endpoint endpoint = Endpoint::tcp("127.0.0.1", default_store_port);

  /// This process runs the server. Port 0: the kernel chooses; port() tells.
  bool is_host = false;
  /// Host: adopt this listening socket instead of binding.
  int listen_fd = -1;
  /// Host: share one server among all hosts of this endpoint in this process.
  bool multi_tenant = false;
  /// Host: at the end, stay until all clients have left, at most this long. Not while an exception unwinds.
  std::chrono::milliseconds linger{0};

  /// Number of processes; 0 is a ValueError, -1 not known.
  int world_size = -1;
  /// Host: wait in the constructor until world_size stores, this one included, have connected.
  bool wait_for_workers = true;

  /// Claimed as this process's own; nothing: no rank.
  std::optional<int> rank{};
  /// For connecting, and until set_timeout() for the calls that say none. 0: for ever.
  std::chrono::milliseconds timeout = Store::default_timeout;

  std::optional<Secret> secret{};
  bool insecure = false;
  std::optional<TlsOptions> tls{};
  std::string job_id{};
  StoreLimits limits{};
};

class StoreConnection;
class Turn;
struct ConnectionOptions;

class COHORT_API TcpStore final : public Store {
 public:
  /// SocketError: the address is taken (host). TimeoutError: no server came. NetworkError: what is there is not this
  /// job's store, or it refused us; says why. StoreTimeoutError "k/n workers joined" (host).
  explicit TcpStore(TcpStoreOptions options);
  ~TcpStore() override;

  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& host() const { return endpoint_.host; }
  std::uint16_t port() const { return endpoint_.port; }
  bool is_host() const { return hosted_ != nullptr; }

  bool has_extended_api() const override { return true; }
  bool has_queues() const override { return true; }
  /// A further connection under the same rank.
  StorePtr clone() override;

  /// The server sets these keys when this connection ends, however it ends: how others learn that a process is gone.
  /// Replaces what was registered before; with nothing, withdraws it. A host that was cut off is noticed after
  /// `silence`; nothing said: about a minute.
  void set_on_disconnect(const Keys& keys, const Values& values, Within within = {},
                         std::chrono::milliseconds silence = {});
  /// The same for the other side: calls here fail when the server's host has not been heard of for this long.
  void notice_silence(std::chrono::milliseconds after);
  /// Ends what another thread waits for on this object: that call, and every later one, is a NetworkError.
  void interrupt();

 private:
  struct Hosted;
  TcpStore(std::shared_ptr<Hosted> hosted, Endpoint endpoint, std::shared_ptr<const ConnectionOptions> connect_to,
           std::chrono::milliseconds timeout);
  static std::shared_ptr<Hosted> host_server(const TcpStoreOptions& options);

  void do_set(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string do_get(std::string_view key, Deadline deadline) override;
  std::int64_t do_add(std::string_view key, std::int64_t amount, Deadline deadline) override;
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             Deadline deadline) override;
  void do_wait(const Keys& keys, Deadline deadline) override;
  bool do_check(const Keys& keys, Deadline deadline) override;
  bool do_delete_key(std::string_view key, Deadline deadline) override;
  std::int64_t do_num_keys(Deadline deadline) override;
  void do_append(std::string_view key, std::string_view value, Deadline deadline) override;
  Values do_multi_get(const Keys& keys, Deadline deadline) override;
  void do_multi_set(const Keys& keys, const Values& values, Deadline deadline) override;
  void do_queue_push(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string do_queue_pop(std::string_view key, bool block, Deadline deadline) override;
  std::int64_t do_queue_len(std::string_view key, Deadline deadline) override;

  struct Call;
  template <class Use>
  auto call(const Call& what, Deadline deadline, Use&& use);

  std::shared_ptr<Hosted> hosted_;  // outlives the connection below
  Endpoint endpoint_;
  std::shared_ptr<const ConnectionOptions> connect_to_;
  std::unique_ptr<Turn> turn_;
  std::unique_ptr<StoreConnection> connection_;
};

}  // namespace cohort
