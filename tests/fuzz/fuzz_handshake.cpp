// SPDX-License-Identifier: BSD-3-Clause
//
// The three messages of the handshake.
#include <cstdlib>

#include "store/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  namespace handshake = cohort::handshake;
  if (const auto hello = handshake::decode_hello(bytes); hello && !handshake::decode_hello(handshake::encode(*hello)))
    std::abort();
  if (const auto claim = handshake::decode_claim(bytes)) {
    if (!handshake::could_be_claim(bytes)) std::abort();
    const auto again = handshake::decode_claim(handshake::encode(claim->claim, claim->proof));
    if (!again || again->claim.rank != claim->claim.rank) std::abort();
  }
  if (const auto welcome = handshake::decode_welcome(bytes);
      welcome && !handshake::decode_welcome(handshake::encode(*welcome)))
    std::abort();
  return 0;
}
