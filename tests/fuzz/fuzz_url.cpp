// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include "accepted.h"
#include "rendezvous/url.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    cohort::parse_rendezvous_url({reinterpret_cast<const char*>(data), size});
    cohort::fuzz::accepted = true;
  } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  return 0;
}
