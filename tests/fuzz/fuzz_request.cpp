// SPDX-License-Identifier: BSD-3-Clause
//
// A request that decodes encodes back to the same bytes.
#include <cstdlib>

#include "accepted.h"
#include "store/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto request = cohort::wire::decode_request(body)) {
    cohort::fuzz::accepted = true;
    std::string again;
    const auto& [kind, content] = *request;
    cohort::wire::encode(content, again, kind);
    const auto decoded = cohort::wire::decode_request(std::string_view(again).substr(cohort::wire::length_size));
    if (!decoded || decoded->kind != kind || decoded->content.op != content.op ||
        decoded->content.number != content.number || decoded->content.keys != content.keys ||
        decoded->content.values != content.values) {
      std::abort();
    }
  }
  return 0;
}
