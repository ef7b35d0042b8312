// SPDX-License-Identifier: BSD-3-Clause
#include "store/connection.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <thread>

#include "core/bytes.h"
#include "core/log_format.h"
#include "store/reply.h"
#include "store/socket.h"

namespace cohort {

namespace {

using handshake::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// How long a server may take for its half of the handshake. Its own timeout for our half is shorter.
constexpr seconds handshake_timeout{5};
/// How long a taken rank is asked for again: when its holder has just been killed, it is free as soon as the kernel has
/// told the server.
constexpr seconds rank_taken_timeout{1};
/// How long a call still waits after its deadline for the reply to its cancellation.
constexpr seconds cancel_timeout{1};

/// The pause between attempts to connect. It is short while the job is starting, so that clients that were there first
/// join within milliseconds of the server's start, and grows when that takes long, so that thousands of clients do not
/// storm a host that is not up.
class Backoff {
 public:
  void rest(Deadline deadline) {
    const auto waited = std::chrono::steady_clock::now() - start_;
    const milliseconds most = waited < seconds(15)   ? milliseconds(8)
                              : waited < seconds(60) ? milliseconds(50)
                                                     : milliseconds(500);
    next_ = std::min<std::chrono::microseconds>(next_ * 2, most);
    // Jitter, so that clients that failed together do not try again together.
    const std::chrono::microseconds pause(
        std::uniform_int_distribution<long>(next_.count() / 2, next_.count())(random_));
    std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(pause, deadline.remaining()));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::microseconds next_{250};
  std::minstd_rand random_{std::random_device{}()};
};

bool receive_exactly(Stream& stream, std::string& into, std::size_t size, Deadline deadline) {
  into.clear();
  while (into.size() < size) {
    if (!stream.receive(into, size - into.size(), deadline)) return false;
  }
  return true;
}

/// The outcome of one attempt to connect and authenticate.
struct Attempt {
  bool is_authenticated = false;
  bool is_final = false;  ///< trying again would not help
  std::string reason;     ///< why it failed, for the final error
  Stream stream;
  handshake::Limits limits;
};

Attempt failed(std::string reason) {
  Attempt attempt;
  attempt.reason = std::move(reason);
  return attempt;
}

Attempt refused(std::string reason) {
  auto attempt = failed(std::move(reason));
  attempt.is_final = true;
  return attempt;
}

Attempt outcome_of(const handshake::Welcome& welcome, const ConnectionOptions& options) {
  switch (welcome.verdict) {
    case Verdict::welcome:
      return {};
    case Verdict::wrong_secret:
      return refused(
          options.secret
              ? "it does not accept our secret: the processes of a job need the same COHORT_SECRET_FILE, and "
                "the port may belong to another job"
              : "it asks for a secret: set COHORT_SECRET_FILE to the job's secret file");
    case Verdict::wrong_job:
      return refused("it belongs to another job; the port is in use");
    case Verdict::rank_taken:
      return failed(fmt::format("rank {} is held by another process", options.rank.value_or(-1)));
    case Verdict::too_many:
      return failed("it has as many connections as it accepts");
  }
  return refused("it answered in a way this version does not know");
}

Attempt authenticate(Stream stream, const ConnectionOptions& options, Deadline deadline) {
  constexpr auto silent =
      "it accepts connections but does not answer as a Cohort store; the port may be in use by "
      "another program";
  if (options.endpoint.kind == Endpoint::Kind::unix_socket && !peer_is_trusted(stream.descriptor())) {
    return refused("the process that listens there belongs to another user");
  }
  if (options.tls && !stream.start_tls(make_tls_client(options.tls.get(), options.tls_name), deadline)) {
    return failed(silent);
  }
  std::string bytes;
  if (!receive_exactly(stream, bytes, handshake::hello_size, deadline)) return failed(silent);
  const auto hello = handshake::decode_hello(bytes);
  if (!hello) return refused("what answers there is not a Cohort store of this version; the port is in use");
  if (hello->asks_for_secret != options.secret.has_value()) {
    return refused(options.secret ? "it does not ask for the secret we were given, so it is not this job's store"
                                  : "it asks for a secret: set COHORT_SECRET_FILE to the job's secret file");
  }
  handshake::Claim claim;
  claim.rank = options.rank;
  claim.is_host = options.is_host;
  claim.is_worker = options.is_worker;
  claim.process = process_nonce();
  claim.nonce = handshake::fresh_nonce();
  claim.job = handshake::tag_of(options.job_id);
  const auto* const secret = options.secret ? &*options.secret : nullptr;
  const handshake::ClaimWithProof sent{claim, handshake::client_proof(secret, *hello, claim)};
  if (!stream.send(handshake::encode(sent.claim, sent.proof), deadline)) {
    return failed(silent);
  }
  if (!receive_exactly(stream, bytes, handshake::welcome_size, deadline)) return failed(silent);
  const auto welcome = handshake::decode_welcome(bytes);
  if (!welcome) return refused("it answered in a way this version does not know");
  auto attempt = outcome_of(*welcome, options);
  if (!attempt.reason.empty()) return attempt;
  if (!handshake::equal(welcome->proof, handshake::server_proof(secret, *hello, sent, *welcome))) {
    return refused("it does not know the job's secret, so it is not this job's store");
  }
  attempt.is_authenticated = true;
  attempt.stream = std::move(stream);
  attempt.limits = welcome->limits;
  return attempt;
}

Attempt connect_and_authenticate(const ConnectionOptions& options, const std::vector<SocketAddress>& addresses,
                                 Deadline deadline) {
  std::string reason;
  for (const auto& address : addresses) {
    if (!options.secret && !options.insecure && !address.is_loopback()) {
      return refused(
          "it is beyond this host, and neither a secret (COHORT_SECRET_FILE) nor COHORT_INSECURE=1 is given");
    }
    auto connected = try_connect(address, earlier(deadline, Deadline::after(handshake_timeout)));
    if (!connected.socket) {
      // Waiting does not help against this process's own limit.
      if (connected.error == EMFILE || connected.error == ENFILE) return refused("too many open files (ulimit -n)");
      reason = std::generic_category().message(connected.error);
      continue;
    }
    try {
      return authenticate(Stream(std::move(connected.socket)), options,
                          earlier(deadline, Deadline::after(handshake_timeout)));
    } catch (const NetworkError& e) {
      // A failed TLS negotiation would fail again; a connection that broke may be a server that is stopping.
      const bool is_tls = e.message().starts_with("TLS");
      if (is_tls) return refused(e.message());
      reason = e.message();
    }
  }
  return failed(reason);
}

}  // namespace

StoreConnection::StoreConnection(const ConnectionOptions& options, Deadline deadline)
    : where_(to_string(options.endpoint)) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<SocketAddress> addresses;
  Backoff backoff;
  std::string reason;
  bool warned = false;
  Deadline::Clock::duration resolved_after{};
  for (;;) {
    Attempt attempt;
    try {
      if (addresses.empty()) addresses = resolve(options.endpoint, deadline);
      attempt = connect_and_authenticate(options, addresses, deadline);
    } catch (const SocketError& e) {
      attempt.reason = e.message();  // the name service may learn a host's name only after the host is up
    }
    if (attempt.is_authenticated) {
      stream_ = std::move(attempt.stream);
      limits_ = attempt.limits;
      return;
    }
    // An attempt that the deadline cut short says less than the one before it.
    if (reason.empty() || !deadline.expired()) reason = attempt.reason;
    const auto waited = std::chrono::steady_clock::now() - start;
    const bool rank_taken = attempt.reason.starts_with("rank ");
    if (attempt.is_final || (rank_taken && waited > rank_taken_timeout)) {
      throw NetworkError(fmt::format("store at {}: {}", where_, attempt.reason), {.rank = options.rank});
    }
    if (deadline.expired()) {
      // Which rank is at fault is not known; it is not this one.
      throw TimeoutError(fmt::format("no store at {} after {:.1f} s: {}; is rank 0, or the launcher, running there?",
                                     where_, std::chrono::duration<double>(waited).count(), reason));
    }
    if (!warned && waited > seconds(10)) {
      log_warn("still no store at {}: {}", where_, attempt.reason);
      warned = true;
    }
    backoff.rest(deadline);
    if (waited - resolved_after > seconds(1)) {
      addresses.clear();  // the name may mean another host by now
      resolved_after = waited;
    }
  }
}

void StoreConnection::check_limits(const StoreRequest& request) const {
  if (request.keys.size() > limits_.keys) {
    throw StoreError(fmt::format("{} keys at once: the store takes at most {}", request.keys.size(), limits_.keys));
  }
  for (const auto key : request.keys) {
    if (key.size() > limits_.key) {
      throw StoreError(fmt::format("a key of {} bytes: the store takes at most {}", key.size(), limits_.key));
    }
  }
  for (const auto value : request.values) {
    if (value.size() > limits_.value) {
      throw StoreError(fmt::format("a value of {} bytes: the store takes at most {}", value.size(), limits_.value));
    }
  }
  const auto size = wire::encoded_size(request);
  if (size > limits_.frame) {
    throw StoreError(fmt::format("a request of {} bytes: the store takes at most {} at once", size, limits_.frame));
  }
}

void StoreConnection::fail(const NetworkError& cause) {
  close();
  throw NetworkError(fmt::format("store at {}: {}", where_, cause.message()));
}

void StoreConnection::close() {
  const std::lock_guard lock(closing_);
  stream_.close();
}

void StoreConnection::interrupt() {
  const std::lock_guard lock(closing_);
  if (stream_.is_open()) ::shutdown(stream_.descriptor(), SHUT_RDWR);
}

StoreReply StoreConnection::call(const StoreRequest& request, Deadline deadline, wire::Kind kind) {
  const TimedLock turn(turn_, deadline);
  if (!turn) {
    throw StoreTimeoutError("another thread's call on this store took until the deadline: give each thread a clone()");
  }
  if (owner_ != ::getpid()) {
    throw Error(fmt::format("the store at {} was connected before fork(): make a new one in the child", where_));
  }
  if (!stream_.is_open()) throw NetworkError(fmt::format("store at {}: the connection was lost earlier", where_));
  check_limits(request);
  outbox_.clear();
  wire::encode(request, outbox_, kind);
  std::string bytes;
  std::optional<wire::Reply> reply;
  try {
    // A request that went out in part cannot be taken back, so a send that does not finish ends the connection.
    const auto send_by = deadline.expired() ? Deadline::after(cancel_timeout) : deadline;
    if (stream_.send(outbox_, send_by)) {
      reply = receive_reply(bytes, deadline);
      if (!reply) {
        outbox_.clear();
        wire::encode({}, outbox_, wire::Kind::cancel);
        const auto until = Deadline::after(cancel_timeout);
        if (stream_.send(outbox_, until)) reply = receive_reply(bytes, until);
      }
    }
  } catch (const NetworkError& e) {
    fail(e);
  }
  if (!reply) {
    close();
    throw StoreTimeoutError(fmt::format("the store at {} does not answer; the connection was given up", where_));
  }
  if (reply->status != wire::Status::ok) throw_store_error(request, reply->status, reply->values);
  return owned(*reply);
}

std::optional<wire::Reply> StoreConnection::receive_reply(std::string& bytes, Deadline deadline) {
  constexpr std::size_t usual = 4096;
  while (bytes.size() < wire::length_size) {
    if (!stream_.receive(bytes, usual, deadline)) return std::nullopt;
  }
  const std::size_t size = load_le<std::uint32_t>(bytes.data());
  if (size > limits_.frame) throw NetworkError("it sent a reply larger than its own limit");
  while (bytes.size() < wire::length_size + size) {
    if (!stream_.receive(bytes, wire::length_size + size - bytes.size(), deadline)) return std::nullopt;
  }
  auto reply = wire::decode_reply(std::string_view(bytes).substr(wire::length_size));
  if (!reply) throw NetworkError("it sent a malformed reply");
  return reply;
}

}  // namespace cohort
