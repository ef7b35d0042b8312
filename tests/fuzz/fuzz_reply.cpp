// SPDX-License-Identifier: BSD-3-Clause
//
// What a client decodes from a server.
#include <cstdlib>

#include "accepted.h"
#include "store/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto reply = cohort::wire::decode_reply(body)) {
    cohort::fuzz::accepted = true;
    std::string again;
    cohort::wire::encode(*reply, again);
    const auto decoded = cohort::wire::decode_reply(std::string_view(again).substr(cohort::wire::length_size));
    if (!decoded || decoded->values != reply->values || decoded->number != reply->number) std::abort();
  }
  return 0;
}
