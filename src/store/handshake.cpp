// SPDX-License-Identifier: BSD-3-Clause
#include "store/handshake.h"

#include <cohort/error.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <span>

#include "core/bytes.h"

namespace cohort::handshake {

namespace {

constexpr std::string_view magic{"COHORT\r\n", 8};
constexpr std::uint8_t version = 2;

constexpr std::uint8_t flag_secret = 1;
constexpr std::uint8_t flag_rank = 1;
constexpr std::uint8_t flag_host = 2;
constexpr std::uint8_t flag_worker = 4;

template <std::size_t N>
void append(std::string& to, const std::array<std::uint8_t, N>& bytes) {
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <std::size_t N>
std::array<std::uint8_t, N> take(std::string_view& from) {
  std::array<std::uint8_t, N> bytes{};
  std::copy_n(from.begin(), N, reinterpret_cast<char*>(bytes.data()));
  from.remove_prefix(N);
  return bytes;
}

std::string head(std::uint8_t flags) {
  std::string bytes(magic);
  append_le(bytes, version);
  append_le(bytes, flags);
  append_le(bytes, std::uint16_t{0});
  return bytes;
}

/// Returns the flags and removes the head, if the bytes are a message of this version and size, with no other flags
/// than `known` and nothing where nothing belongs.
std::optional<std::uint8_t> take_head(std::string_view& bytes, std::size_t size, std::uint8_t known) {
  if (bytes.size() != size || !bytes.starts_with(magic)) return std::nullopt;
  if (load_le<std::uint8_t>(bytes.data() + 8) != version) return std::nullopt;
  const auto flags = load_le<std::uint8_t>(bytes.data() + 9);
  if ((flags & ~known) != 0 || load_le<std::uint16_t>(bytes.data() + 10) != 0) return std::nullopt;
  bytes.remove_prefix(magic.size() + 4);
  return flags;
}

std::string encode_without_proof(const Claim& claim) {
  const auto flags = static_cast<std::uint8_t>((claim.rank ? flag_rank : 0) | (claim.is_host ? flag_host : 0) |
                                               (claim.is_worker ? flag_worker : 0));
  auto bytes = head(flags);
  append_le(bytes, static_cast<std::int32_t>(claim.rank.value_or(-1)));
  append(bytes, claim.process);
  append(bytes, claim.nonce);
  append(bytes, claim.job);
  return bytes;
}

std::string encode_without_proof(const Welcome& welcome) {
  auto bytes = head(static_cast<std::uint8_t>(welcome.verdict));
  append_le(bytes, welcome.limits.key);
  append_le(bytes, welcome.limits.value);
  append_le(bytes, welcome.limits.frame);
  append_le(bytes, welcome.limits.keys);
  return bytes;
}

Proof proof_of(const Secret* secret, std::string_view text) {
  return proof_under(secret == nullptr ? std::span<const std::uint8_t>() : secret->bytes(), text);
}

}  // namespace

Proof proof_under(std::span<const std::uint8_t> key, std::string_view text) {
  Proof proof{};
  unsigned size = 0;
  static constexpr std::uint8_t no_key = 0;
  if (::HMAC(EVP_sha256(), key.empty() ? &no_key : key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &size) == nullptr ||
      size != proof.size()) {
    throw Error("HMAC-SHA256 failed");
  }
  return proof;
}

void prepare_crypto() {
  if (::OPENSSL_init_ssl(0, nullptr) != 1) throw Error("OpenSSL cannot be initialised");
}

Nonce fresh_nonce() {
  Nonce nonce{};
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

JobTag tag_of(std::string_view job_id) {
  JobTag tag{};
  if (job_id.empty()) return tag;
  std::array<std::uint8_t, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (::EVP_Digest(job_id.data(), job_id.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw Error("SHA-256 failed");
  }
  std::copy_n(digest.begin(), tag.size(), tag.begin());
  return tag;
}

Proof client_proof(const Secret* secret, const Hello& hello, const Claim& claim) {
  return proof_of(secret, "cohort store client" + encode(hello) + encode_without_proof(claim));
}
Proof server_proof(const Secret* secret, const Hello& hello, const ClaimWithProof& sent, const Welcome& welcome) {
  return proof_of(
      secret, "cohort store server" + encode(hello) + encode(sent.claim, sent.proof) + encode_without_proof(welcome));
}
bool equal(const Proof& a, const Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string encode(const Hello& hello) {
  auto bytes = head(hello.asks_for_secret ? flag_secret : 0);
  append(bytes, hello.nonce);
  return bytes;
}

std::string encode(const Claim& claim, const Proof& proof) {
  auto bytes = encode_without_proof(claim);
  append(bytes, proof);
  return bytes;
}

std::string encode(const Welcome& welcome) {
  auto bytes = encode_without_proof(welcome);
  append(bytes, welcome.proof);
  return bytes;
}

std::optional<Hello> decode_hello(std::string_view bytes) {
  const auto flags = take_head(bytes, hello_size, flag_secret);
  if (!flags) return std::nullopt;
  return Hello{(*flags & flag_secret) != 0, take<32>(bytes)};
}

bool could_be_claim(std::string_view bytes) {
  const auto beginning = std::string(magic) + static_cast<char>(version);
  const auto known = std::min(bytes.size(), beginning.size());
  return bytes.substr(0, known) == std::string_view(beginning).substr(0, known);
}

std::optional<ClaimWithProof> decode_claim(std::string_view bytes) {
  const auto flags = take_head(bytes, claim_size, flag_rank | flag_host | flag_worker);
  if (!flags) return std::nullopt;
  ClaimWithProof decoded{};
  const auto rank = load_le<std::int32_t>(bytes.data());
  bytes.remove_prefix(sizeof(rank));
  if ((*flags & flag_rank) != 0) {
    if (rank < 0) return std::nullopt;
    decoded.claim.rank = rank;
  } else if (rank != -1) {
    return std::nullopt;
  }
  decoded.claim.is_host = (*flags & flag_host) != 0;
  decoded.claim.is_worker = (*flags & flag_worker) != 0;
  decoded.claim.process = take<16>(bytes);
  decoded.claim.nonce = take<32>(bytes);
  decoded.claim.job = take<16>(bytes);
  decoded.proof = take<32>(bytes);
  return decoded;
}

std::optional<Welcome> decode_welcome(std::string_view bytes) {
  const auto verdict = take_head(bytes, welcome_size, 0xff);
  if (!verdict || *verdict > static_cast<std::uint8_t>(last_verdict)) return std::nullopt;
  Welcome welcome;
  welcome.verdict = static_cast<Verdict>(*verdict);
  for (auto* const limit : {&welcome.limits.key, &welcome.limits.value, &welcome.limits.frame, &welcome.limits.keys}) {
    *limit = load_le<std::uint32_t>(bytes.data());
    bytes.remove_prefix(sizeof(std::uint32_t));
  }
  welcome.proof = take<32>(bytes);
  return welcome;
}

}  // namespace cohort::handshake
