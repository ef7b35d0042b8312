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
#include "core/turn.h"
#include "store/connection.h"
#include "store/wait_error.h"

namespace cohort {

using wire::Op;
using wire::Status;

/// The server this process hosts, and how long it stays for the others at the end.
struct TcpStore::Hosted {
  Hosted(StoreServerOptions options, std::chrono::milliseconds linger_time)
      : server(std::move(options)), linger(linger_time) {}
  ~Hosted() {
    if (linger.count() == 0 || std::uncaught_exceptions() > 0) return;
    log_debug("store: staying until the other processes have left");
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

TcpStore::TcpStore(TcpStoreOptions options) : endpoint_(options.endpoint), turn_(std::make_unique<Turn>()) {
  if (options.world_size == 0) throw ValueError("TcpStore: a world size of 0; use -1 when it is not known");
  if (options.rank && *options.rank < 0) throw ValueError(fmt::format("TcpStore: rank {} is negative", *options.rank));
  set_timeout(options.timeout);
  const auto deadline = Deadline::after_or_never(options.timeout);
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
    : hosted_(std::move(hosted)),
      endpoint_(std::move(endpoint)),
      connect_to_(std::move(connect_to)),
      turn_(std::make_unique<Turn>()) {
  set_timeout(timeout);
  connection_ = std::make_unique<StoreConnection>(*connect_to_, Deadline::after_or_never(timeout));
}

TcpStore::~TcpStore() = default;

StorePtr TcpStore::clone() {
  return StorePtr(new TcpStore(hosted_, endpoint_, connect_to_, timeout()));  // NOLINT: the constructor is private
}

struct TcpStore::Call {
  Op op;
  std::vector<std::string_view> keys{};
  std::vector<std::string_view> values{};
  std::int64_t number = 0;
  std::uint8_t flags = 0;
};

/// Sends, waits, turns refusals into errors, and hands a good reply to `use` while its bytes are there.
template <class Use>
auto TcpStore::call(const Call& what, Deadline deadline, Use&& use) {
  const Turn::Holder turn(*turn_, deadline);
  if (!turn) {
    throw StoreTimeoutError("another thread's call on this store took until the deadline: give each thread a clone()");
  }
  const auto reply = connection_->call({what.op, what.flags, what.number, what.keys, what.values}, deadline);
  switch (reply.reply.status) {
    case Status::ok:
      return use(reply.reply);
    case Status::cancelled: {
      if (what.op == Op::pop) throw StoreTimeoutError(describe_pop_timeout(what.keys[0]));
      throw StoreTimeoutError(describe_missing({reply.reply.values.begin(), reply.reply.values.end()}));
    }
    case Status::not_a_number:
      throw ValueError(describe_not_a_number(what.keys[0]));
    case Status::queue_empty:
      throw QueueEmptyError(describe_empty_queue(what.keys[0]));
    case Status::refused:
      break;
  }
  throw StoreError(fmt::format("the store refused: {}", reply.reply.values.empty() ? "" : reply.reply.values[0]));
}

namespace {

constexpr auto nothing = [](const wire::Reply&) {};
constexpr auto number = [](const wire::Reply& reply) { return reply.number; };

std::string only_value(const wire::Reply& reply) {
  if (reply.values.size() != 1) throw NetworkError("the store sent a reply without a value");
  return std::string(reply.values[0]);
}

std::vector<std::string_view> views(const std::vector<std::string>& items) {
  return {items.begin(), items.end()};
}

}  // namespace

void TcpStore::set_on_disconnect(const Keys& keys, const Values& values, Within within,
                                 std::chrono::milliseconds silence) {
  if (keys.size() != values.size()) throw StoreError("set_on_disconnect: as many values as keys");
  call({Op::will, views(keys), views(values), silence.count()}, within.or_after(timeout()), nothing);
}
void TcpStore::notice_silence(std::chrono::milliseconds after) {
  connection_->notice_silence(after);
}
void TcpStore::interrupt() {
  connection_->interrupt();
}

void TcpStore::do_set(std::string_view key, std::string_view value, Deadline deadline) {
  call({Op::set, {key}, {value}}, deadline, nothing);
}
std::string TcpStore::do_get(std::string_view key, Deadline deadline) {
  return call({Op::get, {key}, {}}, deadline, only_value);
}
std::int64_t TcpStore::do_add(std::string_view key, std::int64_t amount, Deadline deadline) {
  return call({Op::add, {key}, {}, amount}, deadline, number);
}
std::string TcpStore::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                     Deadline deadline) {
  return call({Op::compare_set, {key}, {expected, desired}}, deadline, only_value);
}
void TcpStore::do_wait(const Keys& keys, Deadline deadline) {
  call({Op::wait, views(keys), {}}, deadline, nothing);
}
bool TcpStore::do_check(const Keys& keys, Deadline deadline) {
  return call({Op::check, views(keys), {}}, deadline, number) != 0;
}
bool TcpStore::do_delete_key(std::string_view key, Deadline deadline) {
  return call({Op::erase, {key}, {}}, deadline, number) != 0;
}
std::int64_t TcpStore::do_num_keys(Deadline deadline) {
  return call({Op::count, {}, {}}, deadline, number);
}
void TcpStore::do_append(std::string_view key, std::string_view value, Deadline deadline) {
  call({Op::append, {key}, {value}}, deadline, nothing);
}
Store::Values TcpStore::do_multi_get(const Keys& keys, Deadline deadline) {
  return call({Op::get, views(keys), {}}, deadline, [&](const wire::Reply& reply) {
    if (reply.values.size() != keys.size()) throw NetworkError("the store sent a reply of another length");
    return Values(reply.values.begin(), reply.values.end());
  });
}
void TcpStore::do_multi_set(const Keys& keys, const Values& values, Deadline deadline) {
  call({Op::set, views(keys), views(values)}, deadline, nothing);
}
void TcpStore::do_queue_push(std::string_view key, std::string_view value, Deadline deadline) {
  call({Op::push, {key}, {value}}, deadline, nothing);
}
std::string TcpStore::do_queue_pop(std::string_view key, bool block, Deadline deadline) {
  return call({Op::pop, {key}, {}, 0, block ? wire::flag_block : std::uint8_t{0}}, deadline, only_value);
}
std::int64_t TcpStore::do_queue_len(std::string_view key, Deadline deadline) {
  return call({Op::length, {key}, {}}, deadline, number);
}

}  // namespace cohort
