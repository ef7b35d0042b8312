// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/tcp_store.h>
#include <netinet/in.h>
#include <poll.h>

#include <fstream>
#include <future>
#include <sstream>

#include "store/socket.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(TcpStoreTest, EphemeralPortIsToldBack) {
  TcpStore host(loopback_host());
  EXPECT_TRUE(host.is_host());
  EXPECT_NE(host.port(), 0);
  EXPECT_EQ(host.host(), "127.0.0.1");
  TcpStore client(client_of(host));
  EXPECT_FALSE(client.is_host());
  client.set("k", "v");
  EXPECT_EQ(host.get("k"), "v");
}

TEST(TcpStoreTest, AdoptsAListeningSocket) {
  auto socket = listen_on(Endpoint::tcp("127.0.0.1", 0));
  const auto bound = bound_endpoint(socket.get());
  auto options = loopback_host();
  options.endpoint.port = bound.port;
  options.listen_fd = socket.release();
  TcpStore host(options);
  EXPECT_EQ(host.port(), bound.port);
  TcpStore(client_of(host)).set("k", "v");

  auto another = listen_on(Endpoint::tcp("127.0.0.1", 0));
  auto wrong = loopback_host();
  wrong.endpoint.port = bound.port;
  wrong.listen_fd = another.release();
  EXPECT_ERROR(ValueError, TcpStore{wrong}, "not to port");

  auto not_listening = loopback_host();
  const FileDescriptor plain(::socket(AF_INET, SOCK_STREAM, 0));
  not_listening.listen_fd = plain.get();
  EXPECT_ERROR(ValueError, TcpStore{not_listening}, "not a listening socket");
}

TEST(TcpStoreTest, AddressInUseIsReportedToEveryRank) {
  // Another job's store holds the port: its host is told at bind, its clients by the store that answers.
  auto options = loopback_host();
  options.job_id = "first";
  TcpStore first(options);
  auto second = options;
  second.job_id = "second";
  second.endpoint = first.endpoint();
  EXPECT_ERROR(SocketError, TcpStore{second}, "in use");
  second.is_host = false;
  EXPECT_ERROR(NetworkError, TcpStore{second}, "another job; the port is in use");
}

TEST(TcpStoreTest, APortOfAnotherProgramIsReportedToClients) {
  // One that talks, and one that is silent.
  auto talker = listen_on(Endpoint::tcp("127.0.0.1", 0));
  std::thread greeting([&] {
    wait_ready(talker.get(), POLLIN, Deadline::after(10s));
    const FileDescriptor peer(::accept(talker.get(), nullptr, nullptr));
    const std::string banner = "220 mail.example ESMTP ready, and some more so that it is long enough\r\n";
    EXPECT_GT(::send(peer.get(), banner.data(), banner.size(), MSG_NOSIGNAL), 0);
    char byte = 0;
    EXPECT_LE(::recv(peer.get(), &byte, 1, 0), 0) << "the client says nothing and leaves";
  });
  const auto took = time_of([&] {
    EXPECT_ERROR(NetworkError, TcpStore({.endpoint = bound_endpoint(talker.get()), .timeout = 20s}),
                 "not a Cohort store");
  });
  EXPECT_LT(took, 5s) << "conclusive, so at once";
  greeting.join();

  auto silent = listen_on(Endpoint::tcp("127.0.0.1", 0));
  EXPECT_ERROR(TimeoutError, TcpStore({.endpoint = bound_endpoint(silent.get()), .timeout = 300ms}),
               "port may be in use");
}

TEST(TcpStoreTest, BindsWhatItIsToldAndNothingElse) {
  TcpStore v4(loopback_host());
  auto options = loopback_host();
  options.endpoint = Endpoint::tcp("::1", 0);
  TcpStore v6(options);
  // Lines of these files: number, local address as hexadecimal ADDRESS:PORT, remote address, state (0A: listening), ...
  const auto listeners = [](const char* file, std::uint16_t port) {
    std::ifstream table(file);
    std::vector<std::string> addresses;
    char suffix[16];
    std::snprintf(suffix, sizeof(suffix), ":%04X", port);
    for (std::string line; std::getline(table, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (state == "0A" && local.ends_with(suffix)) addresses.push_back(local.substr(0, local.find(':')));
    }
    return addresses;
  };
  EXPECT_THAT(listeners("/proc/net/tcp", v4.port()), ::testing::ElementsAre("0100007F"));
  EXPECT_TRUE(listeners("/proc/net/tcp6", v4.port()).empty());
  EXPECT_THAT(listeners("/proc/net/tcp6", v6.port()), ::testing::ElementsAre("00000000000000000000000001000000"));
  EXPECT_TRUE(listeners("/proc/net/tcp", v6.port()).empty());
}

TEST(TcpStoreTest, MultiTenantSharesOneServer) {
  auto options = loopback_host();
  options.multi_tenant = true;
  auto first = std::make_shared<TcpStore>(options);
  options.endpoint = first->endpoint();
  TcpStore second(options);
  first->set("k", "v");
  EXPECT_EQ(second.get("k"), "v");
  first.reset();
  EXPECT_EQ(second.get("k"), "v") << "the server lives as long as one of its hosts";
}

TEST(TcpStoreTest, TheHostWaitsForItsWorkers) {
  auto options = loopback_host();
  auto socket = listen_on(options.endpoint);
  options.endpoint = bound_endpoint(socket.get());
  options.listen_fd = socket.release();
  options.world_size = 3;
  options.linger = 20s;
  as_threads(3, [&](int rank) {
    auto mine = options;
    mine.is_host = rank == 0;
    if (rank != 0) mine.listen_fd = -1;
    mine.rank = rank;
    TcpStore store(mine);
    StorePtr clone = store.clone();  // a clone is not another worker
    clone->add("joined", 1);
    while (clone->get("joined") != "3") {
    }
  });
}

TEST(TcpStoreTest, MissingWorkersAreCountedAndNamed) {
  auto options = loopback_host();
  options.world_size = 3;
  options.rank = 0;
  options.timeout = 100ms;
  EXPECT_ERROR(StoreTimeoutError, TcpStore{options}, "1/3 workers joined");
  EXPECT_ERROR(StoreTimeoutError, TcpStore{options}, "missing ranks: 1, 2");
  options.world_size = 0;
  EXPECT_ERROR(ValueError, TcpStore{options}, "world size of 0");
  options.world_size = 3;
  options.wait_for_workers = false;
  TcpStore host(options);
}

TEST(TcpStoreTest, ClientsMayComeFirst) {
  const auto endpoint = unique_unix_endpoint();
  auto client = std::async(std::launch::async, [&] {
    TcpStore store({.endpoint = endpoint, .timeout = 20s});
    return store.get("k");
  });
  EXPECT_EQ(client.wait_for(50ms), std::future_status::timeout);
  TcpStore host({.endpoint = endpoint, .is_host = true});
  host.set("k", "v");
  EXPECT_EQ(client.get(), "v");
}

TEST(TcpStoreTest, AClientIsNotItsOwnServer) {
  // A socket bound to a port and connected to that same port meets itself; the client must see that nobody is there.
  const auto address = [] {
    const auto probe = listen_on(Endpoint::tcp("127.0.0.1", 0));
    return resolve(bound_endpoint(probe.get()), Deadline::after(5s)).front();
  }();
  for (int i = 0; i < 200; ++i) EXPECT_NE(try_connect(address, Deadline::after(1s)).error, 0);
  const FileDescriptor self(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(self.get(), address.get(), address.size), 0);
  ASSERT_EQ(::connect(self.get(), address.get(), address.size), 0) << "this is how it happens";
}

TEST(TcpStoreTest, NobodyThereIsATimeoutThatSaysSo) {
  const auto took = time_of(
      [] { EXPECT_ERROR(TimeoutError, TcpStore({.endpoint = unique_unix_endpoint(), .timeout = 100ms}), "refused"); });
  EXPECT_GE(took, 100ms);
  EXPECT_LT(took, 3s);
}

TEST(TcpStoreTest, NobodyThereIsNotTheFaultOfTheRankThatLooked) {
  try {
    const TcpStore store({.endpoint = unique_unix_endpoint(), .rank = 1, .timeout = 100ms});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TimeoutError& e) {
    EXPECT_EQ(e.context().rank, std::nullopt) << e.what();
  }
}

TEST(TcpStoreTest, AnUnresolvableHostIsATimeoutThatSaysSo) {
  EXPECT_ERROR(TimeoutError,
               TcpStore({.endpoint = Endpoint::tcp("no-such-host.invalid", 1), .timeout = 200ms, .insecure = true}),
               "no-such-host.invalid");
}

TEST(TcpStoreTest, ConnectionsBeyondTheHostNeedASecret) {
  auto options = loopback_host();
  options.endpoint = Endpoint::tcp("0.0.0.0", 0);
  EXPECT_ERROR(ValueError, TcpStore{options}, "COHORT_SECRET_FILE");
  options.secret = Secret::generate();
  TcpStore guarded(options);
  options.secret.reset();
  options.insecure = true;
  TcpStore insecure(options);
  EXPECT_ERROR(NetworkError, TcpStore({.endpoint = Endpoint::tcp("192.0.2.1", 1), .timeout = 1s}), "beyond this host");
}

TEST(TcpStoreTest, SecretsMustAgree) {
  auto options = loopback_host();
  options.secret = Secret::generate();
  TcpStore host(options);
  auto client = client_of(host);
  EXPECT_ERROR(NetworkError, TcpStore{client}, "asks for a secret");
  client.secret = Secret::generate();
  EXPECT_ERROR(NetworkError, TcpStore{client}, "does not accept our secret");
  client.secret = options.secret;
  TcpStore good(client);
  good.set("k", "v");

  TcpStore open_host(loopback_host());
  client.endpoint = open_host.endpoint();
  EXPECT_ERROR(NetworkError, TcpStore{client}, "does not ask for the secret") << "no silent downgrade";
}

TEST(TcpStoreTest, ARankIsHeldByOneProcess) {
  TcpStore host(loopback_host());
  auto options = client_of(host);
  options.rank = 1;
  TcpStore holder(options);
  TcpStore second_of_same_process(options);
  const auto clone = holder.clone();
  clone->set("k", "v");
  as_processes(1, [&](int) {
    EXPECT_ERROR(NetworkError, TcpStore{options}, "rank 1 is held by another process");
    auto other = options;
    other.rank = 2;
    TcpStore fine(other);
    return 0;
  });
}

TEST(TcpStoreTest, ADeadProcessesRankIsFree) {
  TcpStore host(loopback_host());
  auto options = client_of(host);
  options.rank = 1;
  Process victim([&] {
    TcpStore store(options);
    store.set("there", "");
    ::pause();
    return 0;
  });
  host.wait({"there"}, 20s);
  victim.signal(SIGKILL);
  victim.wait();
  TcpStore successor(options);
}

TEST(TcpStoreTest, UseAfterForkIsRefused) {
  TcpStore host(loopback_host());
  TcpStore store(client_of(host));
  as_processes(1, [&](int) {
    EXPECT_ERROR(Error, store.set("k", "v"), "before fork()");
    return 0;
  });
  store.set("k", "v");
}

TEST(TcpStoreTest, ADeadServerIsAnErrorForEveryWaiter) {
  const auto endpoint = unique_unix_endpoint();
  Process server([&] {
    TcpStore host({.endpoint = endpoint, .is_host = true});
    ::pause();
    return 0;
  });
  TcpStore store({.endpoint = endpoint, .timeout = 20s});
  auto waiting = std::async(std::launch::async, [&] { return message_of<NetworkError>([&] { store.get("never"); }); });
  server.signal(SIGKILL);
  server.wait();
  EXPECT_THAT(waiting.get(), ::testing::HasSubstr(to_string(endpoint)));
  EXPECT_ERROR(NetworkError, store.set("k", "v"), "lost earlier");
}

TEST(TcpStoreTest, AStoppedServerCostsTheDeadlineAndLittleMore) {
  const auto endpoint = unique_unix_endpoint();
  Process server([&] {
    TcpStore host({.endpoint = endpoint, .is_host = true});
    ::pause();
    return 0;
  });
  TcpStore store({.endpoint = endpoint, .timeout = 20s});
  server.signal(SIGSTOP);
  const auto took = time_of([&] { EXPECT_ERROR(StoreTimeoutError, store.get("k", 100ms), "does not answer"); });
  EXPECT_GE(took, 100ms);
  EXPECT_LT(took, 4s);
  server.signal(SIGCONT);
}

TEST(TcpStoreTest, OtherThreadsWaitNoLongerThanTheirDeadline) {
  TcpStore host(loopback_host());
  TcpStore store(client_of(host));
  auto blocked = std::async(std::launch::async, [&] { return store.get("late", 20s); });
  // The call below may be first or second. If it is second, it waits for its turn, at most until its own timeout.
  bool was_second = false;
  while (!was_second) {
    try {
      store.check({"x"}, 50ms);
    } catch (const StoreTimeoutError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("clone()"));
      was_second = true;
    }
  }
  host.set("late", "v");
  EXPECT_EQ(blocked.get(), "v");
}

TEST(TcpStoreTest, LimitsAreRefusedWithoutLosingTheConnection) {
  auto options = loopback_host();
  options.limits.key = 10;
  options.limits.value = 1000;
  options.limits.keys = 3;
  TcpStore host(options);
  TcpStore store(client_of(host));
  EXPECT_ERROR(StoreError, store.set(std::string(11, 'k'), ""), "a key of 11 bytes");
  EXPECT_ERROR(StoreError, store.set("k", std::string(1001, 'v')), "a value of 1001 bytes");
  EXPECT_ERROR(StoreError, store.check({"1", "2", "3", "4"}), "4 keys at once");
  store.set("k", std::string(1000, 'v'));
  EXPECT_ERROR(StoreError, store.append("k", "x"), "grow beyond 1000");
  EXPECT_EQ(store.get("k").size(), 1000U);
}

TEST(TcpStoreTest, LargeValuesPass) {
  TcpStore host(loopback_host());
  TcpStore store(client_of(host));
  const std::string value(32 << 20, 'x');
  store.set("large", value);
  EXPECT_EQ(store.get("large"), value);
}

TEST(TcpStoreTest, TheHostLingersUntilAllHaveLeft) {
  auto options = loopback_host();
  options.linger = 20s;
  auto host = std::make_unique<TcpStore>(options);
  auto client = std::make_unique<TcpStore>(client_of(*host));
  auto leaving = std::async(std::launch::async, [&] { host.reset(); });
  EXPECT_EQ(leaving.wait_for(20ms), std::future_status::timeout);
  client->set("still", "served");
  EXPECT_EQ(client->get("still"), "served");
  client.reset();
  leaving.get();
}

TEST(TcpStoreTest, LingerIsBounded) {
  auto options = loopback_host();
  options.linger = 100ms;
  auto host = std::make_unique<TcpStore>(options);
  TcpStore client(client_of(*host));
  const auto took = time_of([&] { host.reset(); });
  EXPECT_GE(took, 100ms);
  EXPECT_LT(took, 3s);
}

TEST(TcpStoreTest, NoLingerWhileAnExceptionUnwinds) {
  auto options = loopback_host();
  options.linger = 20s;
  std::unique_ptr<TcpStore> client;
  const auto took = time_of([&] {
    try {
      TcpStore host(options);
      client = std::make_unique<TcpStore>(client_of(host));
      throw std::runtime_error("failed");
    } catch (const std::runtime_error&) {
    }
  });
  EXPECT_LT(took, 5s);
}

TEST(TcpStoreTest, DisconnectIsAnnounced) {
  TcpStore host(loopback_host());
  Process victim([&] {
    TcpStore store(client_of(host));
    store.set_on_disconnect({"gone"}, {"rank 1"});
    store.set("armed", "");
    ::pause();
    return 0;
  });
  host.wait({"armed"}, 20s);
  EXPECT_FALSE(host.check({"gone"}));
  victim.signal(SIGKILL);
  EXPECT_EQ(host.get("gone", 10s), "rank 1");
}

}  // namespace
}  // namespace cohort::test
