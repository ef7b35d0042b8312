// SPDX-License-Identifier: BSD-3-Clause
#include "store/stream.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <system_error>

#include "store/socket.h"

namespace cohort {

namespace {

NetworkError broken(int error) {
  NetworkError thrown(error == 0 ? "the connection was closed by the other side"
                                 : fmt::format("the connection failed: {}", std::generic_category().message(error)));
  return thrown;
}

/// OpenSSL writes to the socket without MSG_NOSIGNAL. While one of these is there, a SIGPIPE that this thread causes by
/// that is taken away, and one that was pending before stays.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec at_once{};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace

void Stream::close() {
  tls_.reset();
  socket_.reset();
}

bool Stream::await_tls(int result, Deadline deadline) {
  switch (::SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return wait_ready(socket_.get(), POLLIN, deadline);
    case SSL_ERROR_WANT_WRITE:
      return wait_ready(socket_.get(), POLLOUT, deadline);
    case SSL_ERROR_ZERO_RETURN:
      throw broken(0);
    default:
      throw NetworkError(fmt::format("TLS: {}", tls_reason(tls_.get())));
  }
}

bool Stream::start_tls(TlsSession session, Deadline deadline) {
  tls_ = std::move(session);
  ::SSL_set_fd(tls_.get(), socket_.get());
  for (;;) {
    ::ERR_clear_error();
    const WithoutSigpipe guard;
    const int result = ::SSL_connect(tls_.get());
    if (result == 1) return true;
    if (!await_tls(result, deadline)) return false;
  }
}

bool Stream::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (tls_) {
      ::ERR_clear_error();
      const WithoutSigpipe guard;
      std::size_t written = 0;
      const int result = ::SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &written);
      if (result != 1 && !await_tls(result, deadline)) return false;
      bytes.remove_prefix(written);
      continue;
    }
    const auto n = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      if (!wait_ready(socket_.get(), POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      throw broken(errno);
    }
  }
  return true;
}

bool Stream::receive(std::string& into, std::size_t most, Deadline deadline) {
  const auto before = into.size();
  into.resize(before + most);
  std::size_t got = 0;
  bool in_time = true;
  try {
    while (got == 0 && in_time) {
      if (tls_) {
        ::ERR_clear_error();
        const WithoutSigpipe guard;  // it may have to answer the other side
        const int result = ::SSL_read_ex(tls_.get(), into.data() + before, most, &got);
        if (result != 1) in_time = await_tls(result, deadline);
        continue;
      }
      // A reply takes a while, so waiting first and reading once is faster than reading twice.
      in_time = wait_ready(socket_.get(), POLLIN, deadline);
      if (!in_time) break;
      const auto n = ::recv(socket_.get(), into.data() + before, most, 0);
      if (n > 0) got = static_cast<std::size_t>(n);
      if (n == 0) throw broken(0);
      if (n < 0 && errno != EAGAIN && errno != EINTR) throw broken(errno);
    }
  } catch (...) {
    into.resize(before);
    throw;
  }
  into.resize(before + got);
  return in_time;
}

}  // namespace cohort
