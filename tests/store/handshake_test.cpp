// SPDX-License-Identifier: BSD-3-Clause
#include "store/handshake.h"

#include <gtest/gtest.h>

namespace cohort::test {
namespace {

using namespace handshake;

Claim example_claim() {
  Claim claim;
  claim.rank = 3;
  claim.is_worker = true;
  claim.process = process_nonce();
  claim.nonce = fresh_nonce();
  claim.job = tag_of("job");
  return claim;
}

TEST(HandshakeTest, MessagesRoundTrip) {
  const Hello hello{true, fresh_nonce()};
  const auto hello_bytes = encode(hello);
  EXPECT_EQ(hello_bytes.size(), hello_size);
  const auto hello_again = decode_hello(hello_bytes);
  ASSERT_TRUE(hello_again);
  EXPECT_TRUE(hello_again->asks_for_secret);
  EXPECT_EQ(hello_again->nonce, hello.nonce);

  const auto claim = example_claim();
  const auto proof = client_proof(nullptr, hello, claim);
  const auto claim_bytes = encode(claim, proof);
  EXPECT_EQ(claim_bytes.size(), claim_size);
  const auto claim_again = decode_claim(claim_bytes);
  ASSERT_TRUE(claim_again);
  EXPECT_EQ(claim_again->claim.rank, 3);
  EXPECT_TRUE(claim_again->claim.is_worker);
  EXPECT_FALSE(claim_again->claim.is_host);
  EXPECT_EQ(claim_again->proof, proof);

  const Welcome welcome{Verdict::rank_taken, {1, 2, 3, 4}, proof};
  const auto welcome_again = decode_welcome(encode(welcome));
  ASSERT_TRUE(welcome_again);
  EXPECT_EQ(welcome_again->verdict, Verdict::rank_taken);
  EXPECT_EQ(welcome_again->limits.keys, 4U);
}

TEST(HandshakeTest, OtherSizesAndBeginningsAreRefused) {
  auto bytes = encode(Hello{});
  EXPECT_FALSE(decode_hello(bytes.substr(1)));
  EXPECT_FALSE(decode_hello(bytes + "x"));
  bytes[8] = 1;
  EXPECT_FALSE(decode_hello(bytes)) << "another version";
  EXPECT_FALSE(could_be_claim("GET / HTTP/1.1"));
  EXPECT_TRUE(could_be_claim(""));
  EXPECT_TRUE(could_be_claim("COHORT"));
  auto claim = encode(example_claim(), {});
  claim[9] = 0;  // a rank without the flag that says so
  EXPECT_FALSE(decode_claim(claim));
}

TEST(HandshakeTest, EveryPartIsBoundIntoTheProof) {
  const auto secret = Secret::generate();
  const auto other_secret = Secret::generate();
  const Hello hello{true, fresh_nonce()};
  const auto claim = example_claim();
  const auto proof = client_proof(&secret, hello, claim);
  EXPECT_TRUE(equal(proof, client_proof(&secret, hello, claim)));
  EXPECT_FALSE(equal(proof, client_proof(&other_secret, hello, claim)));
  EXPECT_FALSE(equal(proof, client_proof(nullptr, hello, claim)));
  EXPECT_FALSE(equal(proof, server_proof(&secret, hello, {claim, proof}, {})))
      << "a proof cannot be sent back as the other side's";
  const auto differs = [&](auto change) {
    auto changed = claim;
    change(changed);
    return !equal(proof, client_proof(&secret, hello, changed));
  };
  EXPECT_TRUE(differs([](Claim& c) { c.rank = 4; }));
  EXPECT_TRUE(differs([](Claim& c) { c.rank.reset(); }));
  EXPECT_TRUE(differs([](Claim& c) { c.is_host = true; }));
  EXPECT_TRUE(differs([](Claim& c) { c.is_worker = false; }));
  EXPECT_TRUE(differs([](Claim& c) { c.process[0] ^= 1; }));
  EXPECT_TRUE(differs([](Claim& c) { c.nonce[31] ^= 1; }));
  EXPECT_TRUE(differs([](Claim& c) { c.job[0] ^= 1; }));
  EXPECT_FALSE(equal(proof, client_proof(&secret, {true, fresh_nonce()}, claim)))
      << "a recorded proof is worth nothing";
}

/// What a receiver makes of a message of which one byte was changed under way.
template <class Accepts>
void expect_no_byte_is_free(const std::string& message, Accepts accepts) {
  ASSERT_TRUE(accepts(message));
  for (std::size_t i = 0; i < message.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      auto changed = message;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_FALSE(accepts(changed)) << "byte " << i << ", bit " << bit;
    }
  }
}

TEST(HandshakeTest, NoByteOfAClaimIsOutsideItsProof) {
  const auto secret = Secret::generate();
  const Hello hello{true, fresh_nonce()};
  auto claim = example_claim();
  for (const bool has_rank : {true, false}) {
    if (!has_rank) claim.rank.reset();
    expect_no_byte_is_free(encode(claim, client_proof(&secret, hello, claim)), [&](const std::string& bytes) {
      const auto received = decode_claim(bytes);
      return received && equal(received->proof, client_proof(&secret, hello, received->claim));
    });
  }
}

TEST(HandshakeTest, NoByteOfTheServersMessagesIsOutsideItsProof) {
  const auto secret = Secret::generate();
  const Hello hello{true, fresh_nonce()};
  const auto claim = example_claim();
  const ClaimWithProof sent{claim, client_proof(&secret, hello, claim)};
  Welcome welcome{Verdict::welcome, {1, 2, 3, 4}, {}};
  welcome.proof = server_proof(&secret, hello, sent, welcome);
  expect_no_byte_is_free(encode(welcome), [&](const std::string& bytes) {
    const auto received = decode_welcome(bytes);
    return received && equal(received->proof, server_proof(&secret, hello, sent, *received));
  });
  expect_no_byte_is_free(encode(hello), [&](const std::string& bytes) {
    const auto received = decode_hello(bytes);
    return received && equal(sent.proof, client_proof(&secret, *received, claim));
  });
}

TEST(HandshakeTest, NoncesAreFresh) {
  EXPECT_NE(fresh_nonce(), fresh_nonce());
  EXPECT_EQ(process_nonce(), process_nonce());
}

}  // namespace
}  // namespace cohort::test
