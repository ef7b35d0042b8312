// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/crc64.h"

#include <array>
#include <bit>
#include <cstring>

namespace cohort {

namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are written as memory is");

using CrcTables = std::array<std::array<std::uint64_t, 256>, 8>;

/// tables[k][b]: the checksum of byte b after k more bytes.
CrcTables make_crc_tables() {
  constexpr std::uint64_t polynomial = 0xC96C5795D7870F42;
  CrcTables tables{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::uint64_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

}  // namespace

void Crc64::add(const void* data, std::size_t bytes) {
  static const CrcTables tables = make_crc_tables();
  const auto* next = static_cast<const unsigned char*>(data);
  auto state = state_;
  for (; bytes >= 8; bytes -= 8, next += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, next, 8);
    word ^= state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; bytes > 0; --bytes, ++next) state = (state >> 8) ^ tables[0][(state ^ *next) & 0xFF];
  state_ = state;
}

}  // namespace cohort
