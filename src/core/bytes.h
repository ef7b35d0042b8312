// SPDX-License-Identifier: BSD-3-Clause
//
// Converts integers to and from little-endian bytes, which need not be aligned.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <string>

namespace cohort {

static_assert(std::endian::native == std::endian::little, "big-endian machines would need byte swaps here");

template <std::integral T>
T load_le(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <std::integral T>
void append_le(std::string& to, T value) {
  std::array<char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  to.append(bytes.data(), bytes.size());
}

}  // namespace cohort
