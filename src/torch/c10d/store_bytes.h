// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// What values are in c10d's stores; in Cohort's they are text.
using C10dBytes = std::vector<std::uint8_t>;

inline C10dBytes store_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}
inline std::string store_text(const C10dBytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace cohort
