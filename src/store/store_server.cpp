// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/store_server.h>

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>

#include <deque>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/log_format.h"
#include "core/log_rate_limiter.h"
#include "core/random.h"
#include "store/hub.h"
#include "store/session.h"
#include "store/socket.h"
#include "store/tls.h"

namespace cohort {

namespace {

/// After this much silence a client's host counts as gone; a client may ask for less with its will.
constexpr std::chrono::seconds usual_keepalive_timeout{60};

/// Called before anything listens: a server that other hosts can reach needs a secret, or the user's consent.
void check_exposure(const Endpoint& endpoint, const StoreServerOptions& options) {
  if (endpoint.kind == Endpoint::Kind::unix_socket || options.secret || options.insecure) return;
  if (is_loopback(endpoint.host)) return;
  throw ValueError(fmt::format(
      "{} can be reached from other hosts: give the store a secret (cohort secret FILE, then COHORT_SECRET_FILE=FILE), "
      "or say insecure (COHORT_INSECURE=1) if everyone on that network may take part in the job",
      to_string(endpoint)));
}

FileDescriptor make_listener(const StoreServerOptions& options) {
  if (options.listen_fd < 0) {
    check_exposure(options.endpoint, options);
    return listen_on(options.endpoint);
  }
  const auto bound = bound_endpoint(options.listen_fd);  // throws before we own it
  FileDescriptor fd(options.listen_fd);
  check_exposure(bound, options);
  if (options.endpoint.kind == Endpoint::Kind::tcp && options.endpoint.port != 0 &&
      bound.port != options.endpoint.port) {
    throw ValueError(fmt::format("the listening socket given is bound to {}, not to port {}", to_string(bound),
                                 options.endpoint.port));
  }
  return fd;
}

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(StoreServerOptions options)
      : options_(std::move(options)),
        hub_({options_.secret, handshake::tag_of(options_.job_id), options_.limits}),
        acceptor_(context_),
        handshake_timer_(context_),
        accept_pause_(context_) {
    auto listener = make_listener(options_);
    endpoint_ = bound_endpoint(listener.get());
    // Keep the host as the user wrote it; only the port may have been chosen by the kernel.
    if (options_.listen_fd < 0 && endpoint_.kind == Endpoint::Kind::tcp) endpoint_.host = options_.endpoint.host;
    hub_.set_name(to_string(endpoint_));
    if (options_.tls) {
      tls_.emplace(make_tls_context(*options_.tls, TlsRole::server).release());
    }
    SocketAddress bound;
    bound.size = sizeof(bound.storage);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
    acceptor_.assign(asio::generic::stream_protocol(bound.storage.ss_family, 0), listener.release());
    acceptor_.native_non_blocking(true);
    accept();
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    asio::post(context_, [this] { stop(); });
    thread_.join();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  Hub& hub() { return hub_; }

  Stats stats() {
    auto stats = hub_.stats();
    std::promise<void> done;
    asio::post(context_, [&] {
      stats.keys = hub_.table().size();
      stats.bytes = hub_.memory();
      done.set_value();
    });
    done.get_future().wait();
    return stats;
  }

 private:
  /// Counts handlers that are to be called: asio destroys one without calling it where an exception gets in between.
  class Awaited {
   public:
    explicit Awaited(int& count) : count_(&++count) {}
    ~Awaited() {
      if (count_ != nullptr) --*count_;
    }
    Awaited(Awaited&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Awaited& operator=(Awaited&&) = delete;
    Awaited(const Awaited&) = delete;
    Awaited& operator=(const Awaited&) = delete;

   private:
    int* count_;
  };

  void run() {
    ::pthread_setname_np(::pthread_self(), "cohort-store");
    auto work = asio::make_work_guard(context_);
    work_ = &work;
    for (;;) {
      try {
        if (accepts_under_way_ == 0 && acceptor_.is_open()) accept();
        context_.run();
        return;
      } catch (const std::bad_alloc&) {
        // Sessions handle their own. This was the server's, which goes on when there is memory again, or asio's.
        close_forgotten_sessions();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  void stop() {
    asio::error_code ignored;
    acceptor_.close(ignored);
    handshake_timer_.cancel();
    accept_pause_.cancel();
    while (!sessions_.empty()) sessions_.begin()->second->close(false);
    work_->reset();
  }

  /// Those whose handlers asio has lost: nobody but the server holds them any more.
  void close_forgotten_sessions() {
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      const auto session = (it++)->second;
      if (session.use_count() == 2) session->close(true);
    }
  }

  void accept() {
    acceptor_.async_accept([this, awaited = Awaited(accepts_under_way_)](const asio::error_code& error, Socket socket) {
      if (!acceptor_.is_open()) return;
      if (!error) {
        admit_or_drop(std::move(socket));
        return accept();
      }
      // Out of descriptors or the like: pause instead of spinning; connections wait in the backlog meanwhile.
      if (const auto times = accept_failures_.count(); times > 0) {
        log_warn("store at {}: cannot accept a connection: {}; trying again ({} failed since the last warning)",
                 to_string(endpoint_), error.message(), times);
      }
      accept_pause_.expires_after(std::chrono::milliseconds(20));
      accept_pause_.async_wait([this, again = Awaited(accepts_under_way_)](const asio::error_code& cancelled) {
        if (!cancelled) accept();
      });
    });
  }

  void admit_or_drop(Socket socket) {
    SessionHandle* session = nullptr;
    try {
      admit(std::move(socket), session);
    } catch (const std::bad_alloc&) {
      session == nullptr ? hub_.connection_closed(false, true) : session->close(true);
    }
  }

  /// Sets `session` when there is one that has to be closed.
  void admit(Socket socket, SessionHandle*& session) {
    hub_.connection_accepted();
    const auto stats = hub_.stats();
    const bool is_unix = endpoint_.kind == Endpoint::Kind::unix_socket;
    if ((is_unix && !peer_is_trusted(socket.native_handle())) ||
        stats.unauthenticated > options_.limits.unauthenticated_connections) {
      hub_.connection_closed(false, true);
      return;
    }
    if (!is_unix) {
      const int on = 1;
      ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      set_keepalive_timeout(socket.native_handle(), usual_keepalive_timeout);
    }
    if (tls_) {
      start<TlsSocket>(TlsSocket(std::move(socket), *tls_), session);
    } else {
      start<Socket>(std::move(socket), session);
    }
  }

  template <class Stream>
  void start(Stream stream, SessionHandle*& started) {
    auto session = std::make_shared<Session<Stream>>(std::move(stream), hub_,
                                                     [this](SessionHandle* gone) { sessions_.erase(gone); });
    sessions_.emplace(session.get(), session);
    started = session.get();
    unauthenticated_.emplace_back(Deadline::after(options_.handshake_timeout), session);
    if (!is_watching_) watch_handshakes();
    session->start();
  }

  /// All handshakes have the same timeout, so the queue is in order of deadlines and one timer serves it.
  void watch_handshakes() {
    handshake_timer_.expires_at(unauthenticated_.front().first.when());
    handshake_timer_.async_wait([this](const asio::error_code& cancelled) {
      if (cancelled) return;
      is_watching_ = false;
      while (!unauthenticated_.empty() && unauthenticated_.front().first.expired()) {
        const auto session = unauthenticated_.front().second.lock();
        unauthenticated_.pop_front();
        if (session && !session->is_authenticated()) session->close(true);
      }
      while (!unauthenticated_.empty() && unauthenticated_.front().second.expired()) unauthenticated_.pop_front();
      if (!unauthenticated_.empty()) watch_handshakes();
    });
    is_watching_ = true;
  }

  StoreServerOptions options_;
  Hub hub_;
  int accepts_under_way_ = 0;  ///< waiting for a connection, or for the end of the pause
  asio::io_context context_{1};
  asio::basic_socket_acceptor<asio::generic::stream_protocol> acceptor_;
  asio::steady_timer handshake_timer_;
  asio::steady_timer accept_pause_;
  LogRateLimiter accept_failures_{std::chrono::seconds(10)};
  bool is_watching_ = false;  ///< whether the timer of the handshakes is set
  std::optional<asio::ssl::context> tls_;
  Endpoint endpoint_;
  std::unordered_map<SessionHandle*, std::shared_ptr<SessionHandle>> sessions_;
  std::deque<std::pair<Deadline, std::weak_ptr<SessionHandle>>> unauthenticated_;
  asio::executor_work_guard<asio::io_context::executor_type>* work_ = nullptr;
  std::thread thread_;
};

StoreServer::StoreServer(StoreServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
StoreServer::~StoreServer() = default;

const Endpoint& StoreServer::endpoint() const {
  return impl_->endpoint();
}
StoreServer::Joined StoreServer::wait_for_workers(std::size_t workers, Timeout timeout) {
  return impl_->hub().wait_for_workers(workers, timeout.deadline_or(no_timeout));
}
bool StoreServer::wait_until_left(Timeout timeout, Clients clients) {
  return impl_->hub().wait_until_left(timeout.deadline_or(no_timeout), clients);
}
StoreServer::Stats StoreServer::stats() const {
  return impl_->stats();
}

}  // namespace cohort
