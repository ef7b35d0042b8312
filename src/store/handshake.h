// SPDX-License-Identifier: BSD-3-Clause
//
// How a connection to a store begins, before anything else is read from it:
//
//   server → client   Hello    {magic, version, asks for a secret?, server nonce}
//   client → server   Claim    {magic, version, flags, rank, process nonce, client nonce, job tag, proof}
//   server → client   Welcome  {verdict, limits, proof}
//
// Both proofs are HMAC-SHA256 under the job's secret over everything both sides said (each with its own label, so that
// one cannot be replayed as the other): the client proves it first, then the server. With no secret (one host, where
// the kernel vouches for the user, or a job that chose to be insecure) the key is empty and the proofs only show that
// both ends speak the protocol. All messages have a fixed size, so a stranger cannot make the server buffer anything.
// The rank and the process's nonce are part of the proof: a process that knows the secret can still not take a rank
// that another live process holds.
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
  bool is_host = false;    ///< the process that hosts the server: it does not wait for itself to leave
  bool is_worker = false;  ///< counts towards the number of workers the host waits for
  ProcessNonce process{};
  Nonce nonce{};
  JobTag job{};
};

/// What the server takes, so that a client can refuse too much itself and keep its connection.
struct Limits {
  std::uint32_t key = 0;
  std::uint32_t value = 0;
  std::uint32_t frame = 0;
  std::uint32_t keys = 0;
};

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

/// Makes OpenSSL ready now. It takes itself down in an exit handler; an exit handler of ours that still serves
/// connections must be registered after that one, that is, after this call.
void prepare_crypto();

Nonce fresh_nonce();
/// Tells jobs without a secret apart; zero for an empty id.
JobTag tag_of(std::string_view job_id);

/// `secret` may be null.
Proof client_proof(const Secret* secret, const Hello& hello, const Claim& claim);
Proof server_proof(const Secret* secret, const Hello& hello, const Claim& claim);
/// In time that does not depend on where they differ.
bool equal(const Proof& a, const Proof& b);
/// HMAC-SHA256.
Proof proof_under(std::span<const std::uint8_t> key, std::string_view said);

std::string encode(const Hello& hello);
std::string encode(const Claim& claim, const Proof& proof);
std::string encode(const Welcome& welcome);

/// Nothing: these bytes are not that message (of this version).
std::optional<Hello> decode_hello(std::string_view bytes);
struct AuthenticatedClaim {
  Claim claim;
  Proof proof;
};
std::optional<AuthenticatedClaim> decode_claim(std::string_view bytes);
/// Whether these first bytes can still become a claim of this version.
bool could_be_claim(std::string_view bytes);
std::optional<Welcome> decode_welcome(std::string_view bytes);

}  // namespace cohort::handshake
