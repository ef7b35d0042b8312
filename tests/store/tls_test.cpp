// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/tcp_store.h>
#include <openssl/ssl.h>

#include "store/tls.h"
#include "support/certificates.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class TlsTest : public ::testing::Test {
 protected:
  TlsOptions files(const std::string& name, const Identity& identity) {
    write_pem(identity, folder / (name + ".pem"), folder / (name + ".key"));
    return {folder / "ca.pem", folder / (name + ".pem"), folder / (name + ".key")};
  }
  static TcpStoreOptions host_with(const TlsOptions& tls) {
    auto options = loopback_host();
    options.tls = tls;
    return options;
  }
  TcpStoreOptions client_with(const TlsOptions& tls) {
    auto options = client_of(*host);
    options.timeout = 5s;
    options.tls = tls;
    return options;
  }

  TemporaryFolder folder;
  Identity ca = make_identity("Test Authority", "", nullptr);
  TlsOptions unused = files("ca", ca);
  TlsOptions server = files("server", make_identity("server", "IP:127.0.0.1,DNS:store.example", &ca));
  TlsOptions member = files("member", make_identity("member", "DNS:member", &ca));
  std::unique_ptr<TcpStore> host = std::make_unique<TcpStore>([&] {
    auto options = host_with(server);
    return options;
  }());
};

TEST_F(TlsTest, CarriesTheStore) {
  TcpStore client(client_with(member));
  const std::string value(1 << 20, 'x');
  client.set("k", value);
  EXPECT_EQ(host->get("k"), value);
  EXPECT_THROW(client.get("none", 50ms), StoreTimeoutError);
  EXPECT_EQ(client.clone()->get("k"), value);
  as_threads(4, [&](int rank) {
    TcpStore mine(client_with(member));
    mine.set("r" + std::to_string(rank), "v");
  });
}

TEST_F(TlsTest, TheServersNameMustFit) {
  auto named = member;
  named.server_name = "store.example";
  TcpStore fine(client_with(named));
  named.server_name = "other.example";
  EXPECT_ERROR(NetworkError, TcpStore(client_with(named)), "hostname mismatch");
}

TEST_F(TlsTest, AWrongAuthorityIsRefusedByBothSides) {
  const auto other_ca = make_identity("Other Authority", "", nullptr);
  const auto foreign = make_identity("member", "DNS:member", &other_ca);
  // The client trusts ours, but shows a certificate of another: the server refuses.
  const auto wrong_member = files("foreign", foreign);
  EXPECT_ERROR(NetworkError, TcpStore(client_with(wrong_member)), "TLS");
  // The client trusts another authority: it refuses the server.
  auto distrusting = member;
  write_pem(other_ca, folder / "other-ca.pem", folder / "other-ca.key");
  distrusting.ca_file = folder / "other-ca.pem";
  EXPECT_ERROR(NetworkError, TcpStore(client_with(distrusting)), "certificate");
  TcpStore good(client_with(member));
}

TEST_F(TlsTest, ExpiredAndNotYetValidAreRefused) {
  const auto expired = files("expired", make_identity("member", "DNS:member", &ca, -7200, -3600));
  EXPECT_ERROR(NetworkError, TcpStore(client_with(expired)), "TLS");
  const auto future = files("future", make_identity("member", "DNS:member", &ca, 3600, 7200));
  EXPECT_ERROR(NetworkError, TcpStore(client_with(future)), "TLS");
  TcpStore old_host(host_with(server));
  auto options = host_with(files("old-server", make_identity("server", "IP:127.0.0.1", &ca, -7200, -3600)));
  // Its own connection to itself already fails: an expired server cannot start.
  EXPECT_ERROR(NetworkError, TcpStore{options}, "expired");
}

TEST_F(TlsTest, SelfSignedIsRefused) {
  const auto self_signed = files("self", make_identity("member", "DNS:member", nullptr));
  EXPECT_ERROR(NetworkError, TcpStore(client_with(self_signed)), "TLS");
}

TEST_F(TlsTest, APlaintextClientGetsNowhere) {
  auto options = client_of(*host);
  options.timeout = 500ms;
  const auto took = time_of([&] { EXPECT_THROW(TcpStore{options}, NetworkError); });
  EXPECT_LT(took, 10s);
  // And a TLS client on a plaintext server.
  TcpStore plain(loopback_host());
  auto secure = client_of(plain);
  secure.timeout = 2s;
  secure.tls = member;
  EXPECT_THROW(TcpStore{secure}, NetworkError);
}

TEST_F(TlsTest, NothingOlderThanTls13) {
  const auto context = make_tls_context(member, TlsRole::client);
  EXPECT_EQ(::SSL_CTX_get_min_proto_version(context.get()), TLS1_3_VERSION);
  EXPECT_EQ(::SSL_CTX_get_verify_mode(context.get()), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
}

TEST_F(TlsTest, TheSecretIsStillAskedFor) {
  auto options = host_with(server);
  options.secret = Secret::generate();
  TcpStore guarded(options);
  auto client = client_of(guarded);
  client.tls = member;
  EXPECT_ERROR(NetworkError, TcpStore{client}, "asks for a secret");
  client.secret = options.secret;
  TcpStore fine(client);
}

TEST_F(TlsTest, BadFilesAreNamed) {
  auto broken = member;
  broken.cert_file = folder / "missing.pem";
  EXPECT_ERROR(ValueError, TcpStore(client_with(broken)), "missing.pem");
  broken = member;
  broken.key_file = server.key_file;
  EXPECT_THROW(TcpStore(client_with(broken)), ValueError);
  broken = member;
  broken.ca_file = folder / "missing-ca.pem";
  EXPECT_ERROR(ValueError, TcpStore(client_with(broken)), "missing-ca.pem");
}

}  // namespace
}  // namespace cohort::test
