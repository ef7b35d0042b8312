// SPDX-License-Identifier: BSD-3-Clause
//
// Unauthenticated clients: port scanners, garbage, slow and silent clients, huge frames, storms of connections. None of
// them may change the server's state or disturb the job's own clients.
#include <cohort/tcp_store.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>

#include "store/handshake.h"
#include "store/socket.h"
#include "store/wire.h"
#include "support/expect_error.h"
#include "support/log_capture.h"
#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class Intruders : public ::testing::Test {
 protected:
  FileDescriptor connect() {
    const auto address = resolve(server.endpoint(), Deadline::after(5s)).front();
    auto attempt = try_connect(address, Deadline::after(5s));
    EXPECT_EQ(attempt.error, 0);
    return std::move(attempt.socket);
  }
  /// What the server sends until it closes; fails if it does not close in time.
  std::string read_until_closed(int fd, std::chrono::milliseconds patience = 5s) {
    std::string bytes;
    const auto deadline = Deadline::after(patience);
    for (;;) {
      char chunk[4096];
      if (!wait_ready(fd, POLLIN, deadline)) {
        ADD_FAILURE() << "the server did not close the connection";
        return bytes;
      }
      const auto n = ::recv(fd, chunk, sizeof(chunk), 0);
      if (n <= 0) return bytes;
      bytes.append(chunk, static_cast<std::size_t>(n));
    }
  }
  static handshake::Hello read_hello(int fd) {
    std::string bytes(handshake::hello_size, '\0');
    EXPECT_TRUE(wait_ready(fd, POLLIN, Deadline::after(5s)));
    EXPECT_EQ(::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
    return handshake::decode_hello(bytes).value_or(handshake::Hello{});
  }
  static void send(int fd, std::string_view bytes) { ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  /// The server still serves the job's own clients, and quickly.
  void expect_undisturbed() {
    const auto took = time_of([this] {
      client.set("k", "v");
      EXPECT_EQ(client.get("k"), "v");
      TcpStore newcomer({.endpoint = server.endpoint(), .timeout = 10s, .secret = secret});
      EXPECT_EQ(newcomer.get("k"), "v");
    });
    EXPECT_LT(took, 2s);
    EXPECT_EQ(server.stats().keys, 1U);
  }
  /// Waits until the server has closed all unauthenticated connections.
  void expect_all_gone() {
    const auto deadline = Deadline::after(10s);
    while (server.stats().unauthenticated > 0 && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(server.stats().unauthenticated, 0U);
  }

  Secret secret = Secret::generate();
  StoreServer server{{.endpoint = Endpoint::tcp("127.0.0.1", 0), .secret = secret, .handshake_timeout = 300ms}};
  TcpStore client{{.endpoint = server.endpoint(), .timeout = 20s, .secret = secret}};
};

TEST_F(Intruders, PortScanners) {
  for (int i = 0; i < 50; ++i) connect();  // connects and leaves without a word
  for (const auto* const probe : {"GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00", "SSH-2.0-scan\r\n",
                                  "\r\n\r\n", "\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    const auto fd = connect();
    send(fd.get(), probe);
    EXPECT_EQ(read_until_closed(fd.get()).size(), handshake::hello_size) << "nothing but the greeting";
  }
  expect_all_gone();
  EXPECT_GE(server.stats().rejected, 55U);
  expect_undisturbed();
}

TEST_F(Intruders, GarbageOfAllSizes) {
  std::minstd_rand random(1);
  for (int i = 0; i < 100; ++i) {
    const auto fd = connect();
    std::string garbage(static_cast<std::size_t>(random() % 5000 + 1), '\0');
    for (auto& byte : garbage) byte = static_cast<char>(random());
    if (i % 2 == 0) garbage = "COHORT\r\n\x01" + garbage;
    garbage.resize(std::max(garbage.size(), handshake::claim_size), 'x');
    send(fd.get(), garbage);
    read_until_closed(fd.get());
  }
  expect_all_gone();
  expect_undisturbed();
}

TEST_F(Intruders, SlowAndSilentClientsAreSeenOff) {
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect());
  const auto slow = connect();
  send(slow.get(), "COHORT\r\n\x01");  // a good beginning, and then nothing
  const auto took = time_of([&] {
    for (const auto& fd : silent) read_until_closed(fd.get());
    read_until_closed(slow.get());
  });
  EXPECT_LT(took, 3s);
  expect_all_gone();
  expect_undisturbed();
}

TEST_F(Intruders, ASlowlorisCannotStretchTheHandshake) {
  const auto fd = connect();
  const auto claim = handshake::encode(handshake::Claim{}, {});
  const auto took = time_of([&] {
    // A byte whenever the server has not closed yet: progress does not buy time.
    for (const char byte : claim) {
      send(fd.get(), {&byte, 1});
      if (wait_ready(fd.get(), POLLRDHUP, Deadline::after(20ms))) break;
    }
    read_until_closed(fd.get());
  });
  EXPECT_LT(took, 2s);
  expect_all_gone();
}

TEST_F(Intruders, AForgedClaimIsRefused) {
  const auto fd = connect();
  handshake::Claim claim;
  claim.rank = 0;
  send(fd.get(), handshake::encode(claim, {}));
  const auto answer = read_until_closed(fd.get());
  ASSERT_EQ(answer.size(), handshake::hello_size + handshake::welcome_size);
  const auto welcome = handshake::decode_welcome(std::string_view(answer).substr(handshake::hello_size));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, handshake::Verdict::wrong_secret);
  EXPECT_EQ(welcome->proof, handshake::Proof{}) << "an unauthenticated client learns no proof";
  expect_undisturbed();
}

TEST_F(Intruders, ARecordedClaimIsWorthNothing) {
  // What an eavesdropper saw of a good handshake, sent again.
  const auto first = connect();
  const auto hello = read_hello(first.get());
  handshake::Claim claim;
  claim.rank = 0;
  const auto recorded = handshake::encode(claim, handshake::client_proof(&secret, hello, claim));
  const auto second = connect();
  send(second.get(), recorded);
  const auto answer = read_until_closed(second.get());
  const auto welcome = handshake::decode_welcome(std::string_view(answer).substr(handshake::hello_size));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, handshake::Verdict::wrong_secret);
}

std::size_t count_of(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_F(Intruders, AWrongSecretIsMentionedByTheServerNowAndThen) {
  LogCapture log;
  const auto wrong = Secret::generate();
  for (int i = 0; i < 20; ++i) {
    EXPECT_ERROR(NetworkError, TcpStore({.endpoint = server.endpoint(), .timeout = 10s, .secret = wrong}),
                 "does not accept our secret");
  }
  const auto text = log.text();
  EXPECT_NE(text.find(to_string(server.endpoint())), std::string::npos) << text;
  EXPECT_NE(text.find("refused a process at 127.0.0.1:"), std::string::npos) << text;
  EXPECT_NE(text.find("COHORT_SECRET_FILE"), std::string::npos) << text;
  EXPECT_EQ(count_of(text, "does not have the job's secret"), 1U) << "not once for each attempt: " << text;
}

TEST_F(Intruders, ConnectionsThatCannotBeAcceptedDoNotFloodTheLog) {
  as_processes(1, [&](int) {
    LogCapture log;
    StoreServer cramped({.endpoint = Endpoint::tcp("127.0.0.1", 0)});
    const auto address = resolve(cramped.endpoint(), Deadline::after(5s)).front();
    const FileDescriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    FileDescriptor next(::dup(stranger.get()));
    const rlimit none_left{static_cast<rlim_t>(next.get()), static_cast<rlim_t>(next.get())};
    next.reset();
    if (::setrlimit(RLIMIT_NOFILE, &none_left) != 0) return 1;
    if (::connect(stranger.get(), address.get(), address.size) != 0) return 2;
    const auto deadline = Deadline::after(10s);
    while (log.text().empty() && !deadline.expired()) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(300ms);  // time for a dozen more attempts
    EXPECT_EQ(count_of(log.text(), "cannot accept a connection"), 1U) << log.text();
    return 0;
  });
}

TEST_F(Intruders, AServerThatCannotProveTheSecretIsRefused) {
  // An impostor took the port: it greets as a store does and welcomes everyone, but does not know the secret.
  const auto impostor = listen_on(Endpoint::tcp("127.0.0.1", 0));
  std::thread serving([&] {
    ASSERT_TRUE(wait_ready(impostor.get(), POLLIN, Deadline::after(10s)));
    const FileDescriptor peer(::accept(impostor.get(), nullptr, nullptr));
    send(peer.get(), handshake::encode(handshake::Hello{true, handshake::fresh_nonce()}));
    std::string claim(handshake::claim_size, '\0');
    EXPECT_EQ(::recv(peer.get(), claim.data(), claim.size(), MSG_WAITALL), static_cast<ssize_t>(claim.size()));
    send(peer.get(), handshake::encode(handshake::Welcome{handshake::Verdict::welcome, {8192, 8192, 8192, 1}, {}}));
    char byte = 0;
    EXPECT_LE(::recv(peer.get(), &byte, 1, 0), 0) << "nothing more is sent to it";
  });
  EXPECT_ERROR(NetworkError, TcpStore({.endpoint = bound_endpoint(impostor.get()), .timeout = 10s, .secret = secret}),
               "does not know the job's secret");
  serving.join();
}

TEST_F(Intruders, HalfOpenConnectionsOfMembersHoldNothing) {
  // An authenticated client closes its half and goes on reading: the server closes the other half, and the rank is
  // free.
  const auto fd = connect();
  const auto hello = read_hello(fd.get());
  handshake::Claim claim;
  claim.rank = 5;
  send(fd.get(), handshake::encode(claim, handshake::client_proof(&secret, hello, claim)));
  ASSERT_EQ(::shutdown(fd.get(), SHUT_WR), 0);
  const auto welcome = handshake::decode_welcome(read_until_closed(fd.get()));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, handshake::Verdict::welcome);
  client.set("k", "v");
  TcpStore again({.endpoint = server.endpoint(), .rank = 5, .timeout = 10s, .secret = secret});
  EXPECT_EQ(again.get("k"), "v");
}

TEST_F(Intruders, AStormOfConnectionsIsBounded) {
  StoreServer small({.endpoint = Endpoint::tcp("127.0.0.1", 0),
                     .secret = secret,
                     .limits = {.connections = 4, .unauthenticated_connections = 10},
                     .handshake_timeout = 300ms});
  const auto address = resolve(small.endpoint(), Deadline::after(5s)).front();
  std::vector<FileDescriptor> storm;
  for (int i = 0; i < 200; ++i) storm.push_back(try_connect(address, Deadline::after(5s)).socket);
  const auto deadline = Deadline::after(10s);
  while (small.stats().accepted < 200 && !deadline.expired()) EXPECT_LE(small.stats().unauthenticated, 11U);
  // Clients can authenticate again once those connections are closed, and no more of them than the limit.
  std::vector<std::unique_ptr<TcpStore>> members;
  for (int i = 0; i < 4; ++i) {
    members.push_back(
        std::make_unique<TcpStore>(TcpStoreOptions{.endpoint = small.endpoint(), .timeout = 10s, .secret = secret}));
  }
  EXPECT_ERROR(TimeoutError, TcpStore({.endpoint = small.endpoint(), .timeout = 200ms, .secret = secret}),
               "as many connections as it accepts");
  members.pop_back();
  TcpStore one_more({.endpoint = small.endpoint(), .timeout = 10s, .secret = secret});
}

// Not with the fixture, whose server has threads: the other user's process is forked before there are any, because
// thread sanitizer ends a process that starts threads after it was forked from one with several.

TEST(OtherUsers, AListenerOfTheirsIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act as another user";
  // A squatter knows the name of a job's socket and has taken it first.
  const auto endpoint = unique_unix_endpoint();
  Process squatter([&] {
    if (::setuid(65534) != 0) return 1;
    const StoreServer squatting({.endpoint = endpoint});
    ::pause();
    return 0;
  });
  EXPECT_ERROR(NetworkError, TcpStore({.endpoint = endpoint, .timeout = 20s}), "belongs to another user");
  EXPECT_ERROR(SocketError, TcpStore({.endpoint = endpoint, .is_host = true, .timeout = 20s}), "cannot listen");
  squatter.signal(SIGKILL);
  squatter.wait();
}

TEST(OtherUsers, CannotUseASocketOfOurs) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act as another user";
  const auto endpoint = unique_unix_endpoint();
  // The server drops a client of another user, and such a client would not trust the server either. Root is trusted.
  Process stranger([&] {
    if (::setuid(65534) != 0) return 1;
    EXPECT_ERROR(TimeoutError, TcpStore({.endpoint = endpoint, .timeout = 2s}), "closed by the other side");
    return 0;
  });
  TcpStore host({.endpoint = endpoint, .is_host = true});
  EXPECT_EQ(stranger.wait(), 0);
  host.set("k", "v");
}

}  // namespace
}  // namespace cohort::test
