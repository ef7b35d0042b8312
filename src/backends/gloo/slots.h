// SPDX-License-Identifier: BSD-3-Clause
//
// Gloo matches messages by a number, the slot, and ends the process of a receiver that gets more than it expects. So
// the number of a collective's message says what the ranks must agree on (which operation, how much of what): those who
// disagree do not meet, and time out.
#pragma once

#include <cstdint>

namespace cohort::gloo {

/// The topmost byte belongs to Gloo's own collectives below 0x10.
enum class Use : std::uint8_t { piece = 0xC0, frame = 0xC1, payload = 0xC2, proof = 0xC3 };

constexpr std::uint64_t slot_of(Use use, std::uint64_t number) {
  constexpr std::uint64_t below = (std::uint64_t{1} << 56U) - 1;
  return (static_cast<std::uint64_t>(use) << 56U) | (number & below);
}

}  // namespace cohort::gloo
