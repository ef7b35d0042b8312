// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/endpoint.h>
#include <cohort/error.h>

#include <cstdlib>

#include "accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto endpoint = cohort::Endpoint::parse({reinterpret_cast<const char*>(data), size});
    if (cohort::Endpoint::parse(to_string(endpoint)) != endpoint) std::abort();
    cohort::fuzz::accepted = true;
  } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  return 0;
}
