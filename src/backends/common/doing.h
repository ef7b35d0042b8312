// SPDX-License-Identifier: BSD-3-Clause
//
// What a rank is in, so that ranks which are not in the same can find out.
#pragma once

#include <cohort/backend.h>

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace cohort {

/// Mixes well enough that two different operations share a number once in the range of it.
constexpr std::uint64_t digest_of(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t state = 0x9e3779b97f4a7c15U;
  for (const auto part : parts) {
    state = (state ^ part) * 0xbf58476d1ce4e5b9U;
    state ^= state >> 29U;
  }
  return state * 0x94d049bb133111ebU;
}

struct Doing {
  OpType op = OpType::unknown;
  std::uint64_t sequence = 0;
  int root = -1;
  std::uint64_t bytes = 0;  ///< on which all ranks agree; 0 where they need not
  std::uint64_t kind = 0;   ///< dtype and reduction

  static Doing of(const Call& call, int root, std::uint64_t bytes) {
    return {.op = call.op(), .sequence = call.sequence(), .root = root, .bytes = bytes};
  }
  static Doing of(const Call& call, int root, const Reduction& reduction) {
    auto doing = of(call, root, reduction.bytes());
    doing.kind =
        static_cast<std::uint64_t>(reduction.dtype) * 256 + static_cast<std::uint64_t>(reduction.op.kind()) + 1;
    return doing;
  }

  std::uint64_t digest() const {
    return digest_of({static_cast<std::uint64_t>(op), sequence, static_cast<std::uint64_t>(root), bytes, kind});
  }
  std::string text() const {
    return fmt::format("{}{}{}{} #{}", to_string(op), bytes == 0 && root < 0 ? "" : "(",
                       bytes == 0 ? "" : fmt::format("{} bytes{}", bytes, root < 0 ? ")" : ", "),
                       root < 0 ? "" : fmt::format("root {})", root), sequence);
  }
};

}  // namespace cohort
