// SPDX-License-Identifier: BSD-3-Clause
//
// How the two ends of a store connection authenticate each other, before anything else is read from it. There are three
// messages:
//
//   server → client   Hello    {magic, version, whether a secret is required, server nonce}
//   client → server   Claim    {magic, version, flags, rank, process nonce, client nonce, job tag, proof}
//   server → client   Welcome  {magic, version, verdict, limits, proof}
//
// Each proof is an HMAC-SHA256 under the job's secret over all that was sent before it, with a label that differs
// between client and server, so that one proof cannot be replayed as the other. The client proves first, then the
// server. A message is accepted only if each of its bytes is the one that its sender's encoder writes: what has no
// meaning has to be zero, so there is no byte of a message that a proof does not cover.
// Without a secret (on one host, where the kernel vouches for the user, or in a job that chose to be insecure) the key
// is empty, and the proofs only show that both ends speak the protocol. All messages have a fixed size, so an
// unauthenticated client cannot make the server buffer anything. The rank and the process's nonce are covered by the
// proof: even a process that knows the secret cannot take a rank that another live process holds.
#pragma once

#include <cohort/secret.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/random.h"

namespace cohort::handshake {

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;
using JobTag = std::array<std::uint8_t, 16>;

struct Hello {
  bool asks_for_secret = false;
  Nonce nonce{};
};

struct Claim {
  std::optional<int> rank;
  bool is_host = false;    ///< comes from the process that hosts the server, which does not wait for itself to leave
  bool is_worker = false;  ///< counts towards the number of workers the host waits for
  ProcessNonce process{};
  Nonce nonce{};
  JobTag job{};
};

/// What the server accepts, so that a client can refuse a larger request itself and keep its connection.
struct Limits {
  std::uint32_t key = 0;
  std::uint32_t value = 0;
  std::uint32_t frame = 0;
  std::uint32_t keys = 0;
};

/// The server's decision on a claim.
enum class Verdict : std::uint8_t { welcome, wrong_secret, wrong_job, rank_taken, too_many };
inline constexpr Verdict last_verdict = Verdict::too_many;

struct Welcome {
  Verdict verdict = Verdict::welcome;
  Limits limits;
  Proof proof{};
};

inline constexpr std::size_t hello_size = 8 + 4 + 32;
inline constexpr std::size_t claim_size = 8 + 4 + 4 + 16 + 32 + 16 + 32;
inline constexpr std::size_t welcome_size = 8 + 4 + 16 + 32;

/// Initialises OpenSSL, which registers an exit handler that shuts it down. An exit handler of ours that still serves
/// connections has to run before that one, so it must be registered after this call.
void prepare_crypto();

Nonce fresh_nonce();
/// Distinguishes jobs that have no secret; zero for an empty id.
JobTag tag_of(std::string_view job_id);

/// `secret` is null if the job has none.
Proof client_proof(const Secret* secret, const Hello& hello, const Claim& claim);
/// `sent` is the claim with its proof; of the welcome everything but its own proof is covered.
struct ClaimWithProof {
  Claim claim;
  Proof proof;
};
Proof server_proof(const Secret* secret, const Hello& hello, const ClaimWithProof& sent, const Welcome& welcome);
/// Takes the same time wherever the two differ.
bool equal(const Proof& a, const Proof& b);
/// HMAC-SHA256.
Proof proof_under(std::span<const std::uint8_t> key, std::string_view text);

std::string encode(const Hello& hello);
std::string encode(const Claim& claim, const Proof& proof);
std::string encode(const Welcome& welcome);

/// The decoders return nullopt if the bytes are not such a message of this version.
std::optional<Hello> decode_hello(std::string_view bytes);
std::optional<ClaimWithProof> decode_claim(std::string_view bytes);
/// Whether a claim of this version can begin with these bytes.
bool could_be_claim(std::string_view bytes);
std::optional<Welcome> decode_welcome(std::string_view bytes);

}  // namespace cohort::handshake
