// SPDX-License-Identifier: BSD-3-Clause
//
// Gloo matches messages by a number, the slot, and ends the process of a receiver that gets more than it expects. The
// slot of a collective's message therefore encodes what the ranks must agree on (the operation, the type and the size):
// messages of ranks that disagree do not match, and time out.
#pragma once

#include <cstdint>

namespace cohort::gloo {

/// Gloo's own collectives use values of the topmost byte below 0x10.
enum class Use : std::uint8_t { piece = 0xC0, frame = 0xC1, payload = 0xC2, proof = 0xC3 };

constexpr std::uint64_t slot_of(Use use, std::uint64_t number) {
  constexpr std::uint64_t below = (std::uint64_t{1} << 56U) - 1;
  return (static_cast<std::uint64_t>(use) << 56U) | (number & below);
}

}  // namespace cohort::gloo
