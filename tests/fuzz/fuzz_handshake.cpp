// SPDX-License-Identifier: BSD-3-Clause
//
// The three messages of the handshake.
#include <cstdlib>

#include "accepted.h"
#include "store/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  namespace handshake = cohort::handshake;
  const auto hello = handshake::decode_hello(bytes);
  const auto claim = handshake::decode_claim(bytes);
  const auto welcome = handshake::decode_welcome(bytes);
  cohort::fuzz::accepted = hello || claim || welcome;
  if (hello && !handshake::decode_hello(handshake::encode(*hello))) std::abort();
  if (claim) {
    if (!handshake::could_be_claim(bytes)) std::abort();
    const auto again = handshake::decode_claim(handshake::encode(claim->claim, claim->proof));
    if (!again || again->claim.rank != claim->claim.rank) std::abort();
  }
  if (welcome && !handshake::decode_welcome(handshake::encode(*welcome))) std::abort();
  return 0;
}
