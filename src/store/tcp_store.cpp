// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/log_format.h"
#include "store/connection.h"

namespace cohort {

/// The server that this process hosts, and how long it waits at the end for the others to leave.
struct TcpStore::Hosted {
  Hosted(StoreServerOptions options, std::chrono::milliseconds linger_time)
      : server(std::move(options)), linger(linger_time) {}
  ~Hosted() {
    if (linger.count() == 0 || std::uncaught_exceptions() > 0) return;
    log_debug("store: waiting until the other processes have left");
    if (!server.wait_until_left(Deadline::after(linger))) {
      log_warn("store: leaving although {} connections are still open", server.stats().connections);
    }
  }
  Hosted(const Hosted&) = delete;
  Hosted& operator=(const Hosted&) = delete;

  StoreServer server;
  std::chrono::milliseconds linger;
};

std::shared_ptr<TcpStore::Hosted> TcpStore::host_server(const TcpStoreOptions& options) {
  const StoreServerOptions server{.endpoint = options.endpoint,
                                  .listen_fd = options.listen_fd,
                                  .secret = options.secret,
                                  .insecure = options.insecure,
                                  .tls = options.tls,
                                  .job_id = options.job_id,
                                  .limits = options.limits};
  if (!options.multi_tenant) return std::make_shared<Hosted>(server, options.linger);

  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Hosted>> servers;
  const std::lock_guard lock(mutex);
  if (auto shared = servers[to_string(options.endpoint)].lock()) return shared;
  auto hosted = std::make_shared<Hosted>(server, options.linger);
  servers[to_string(hosted->server.endpoint())] = hosted;  // under the port that was chosen
  return hosted;
}

TcpStore::TcpStore(TcpStoreOptions options) : endpoint_(options.endpoint) {
  if (options.world_size == 0) throw ValueError("TcpStore: a world size of 0; use -1 when it is not known");
  if (options.rank && *options.rank < 0) throw ValueError(fmt::format("TcpStore: rank {} is negative", *options.rank));
  set_timeout(options.timeout);
  const auto deadline = Deadline::after(options.timeout);
  if (options.is_host) {
    hosted_ = host_server(options);
    endpoint_ = hosted_->server.endpoint();
  }
  auto connect_to = std::make_shared<ConnectionOptions>();
  connect_to->endpoint = endpoint_;
  connect_to->secret = options.secret;
  connect_to->insecure = options.insecure;
  if (options.tls) {
    connect_to->tls = std::shared_ptr<SSL_CTX>(make_tls_context(*options.tls, TlsRole::client));
    connect_to->tls_name = options.tls->server_name.empty() ? endpoint_.host : options.tls->server_name;
  }
  connect_to->job_id = options.job_id;
  connect_to->rank = options.rank;
  connect_to->is_host = options.is_host;
  connect_to->is_worker = true;
  connection_ = std::make_unique<StoreConnection>(*connect_to, deadline);
  connect_to->is_worker = false;  // clones are not counted again
  connect_to_ = std::move(connect_to);

  if (!hosted_ || options.world_size < 1 || !options.wait_for_workers) return;
  const auto workers = static_cast<std::size_t>(options.world_size);
  const auto joined = hosted_->server.wait_for_workers(workers, deadline);
  if (joined.workers >= workers) return;
  hosted_->linger = {};
  std::vector<int> missing;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (!std::binary_search(joined.ranks.begin(), joined.ranks.end(), rank)) missing.push_back(rank);
  }
  throw StoreTimeoutError(
      fmt::format("{}/{} workers joined the store at {} within {} ms{}", joined.workers, workers, to_string(endpoint_),
                  options.timeout.count(),
                  joined.ranks.empty() ? "" : fmt::format("; missing ranks: {}", fmt::join(missing, ", "))));
}

TcpStore::TcpStore(std::shared_ptr<Hosted> hosted, Endpoint endpoint,
                   std::shared_ptr<const ConnectionOptions> connect_to, std::chrono::milliseconds timeout)
    : hosted_(std::move(hosted)), endpoint_(std::move(endpoint)), connect_to_(std::move(connect_to)) {
  set_timeout(timeout);
  connection_ = std::make_unique<StoreConnection>(*connect_to_, Deadline::after(timeout));
}

TcpStore::~TcpStore() = default;

StorePtr TcpStore::clone() {
  return StorePtr(new TcpStore(hosted_, endpoint_, connect_to_, timeout()));  // NOLINT: the constructor is private
}

StoreReply TcpStore::execute(const StoreRequest& request, Deadline deadline) {
  return connection_->call(request, deadline);
}

void TcpStore::set_on_disconnect(const Keys& keys, const Values& values, Timeout timeout,
                                 std::chrono::milliseconds keepalive_timeout) {
  if (keys.size() != values.size()) {
    throw StoreError(fmt::format("set_on_disconnect: {} keys but {} values", keys.size(), values.size()));
  }
  connection_->call({.keys = {keys.begin(), keys.end()},
                     .values = {values.begin(), values.end()},
                     .number = keepalive_timeout.count()},
                    timeout.deadline_or(this->timeout()), wire::Kind::will);
}
void TcpStore::set_keepalive_timeout(std::chrono::milliseconds after) {
  connection_->set_keepalive_timeout(after);
}
void TcpStore::interrupt() {
  connection_->interrupt();
}

}  // namespace cohort
