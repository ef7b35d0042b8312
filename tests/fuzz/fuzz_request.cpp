// SPDX-License-Identifier: BSD-3-Clause
//
// A request that decodes encodes back to the same bytes.
#include <cstdlib>

#include "store/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto request = cohort::wire::decode_request(body)) {
    std::string again;
    cohort::wire::encode(*request, again);
    const auto decoded = cohort::wire::decode_request(std::string_view(again).substr(cohort::wire::length_size));
    if (!decoded || decoded->keys != request->keys || decoded->values != request->values) std::abort();
  }
  return 0;
}
