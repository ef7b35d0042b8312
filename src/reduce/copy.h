// SPDX-License-Identifier: BSD-3-Clause
//
// Copies between memory regions that do not overlap.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

namespace cohort::reduce {

namespace detail {
/// Copies between `half` and twice as many bytes by two moves that may overlap.
template <std::size_t half>
void copy_by_halves(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::array<std::byte, half> first;
  std::array<std::byte, half> last;
  std::memcpy(first.data(), from, half);
  std::memcpy(last.data(), from + bytes - half, half);
  std::memcpy(to, first.data(), half);
  std::memcpy(to + bytes - half, last.data(), half);
}
}  // namespace detail

inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 32) {
    std::memcpy(to, from, bytes);
    return;
  }
  // Inline: what small collectives carry, for which the call takes longer than the copy.
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (bytes >= 16) return detail::copy_by_halves<16>(target, source, bytes);
  if (bytes >= 8) return detail::copy_by_halves<8>(target, source, bytes);
  if (bytes >= 4) return detail::copy_by_halves<4>(target, source, bytes);
  for (std::size_t i = 0; i < bytes; ++i) target[i] = source[i];
}

/// Copies with stores that bypass the caches, for a destination that is too large to be read from the caches later. The
/// stores are visible to every thread that synchronises with this one after the call.
void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace cohort::reduce
