// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

namespace cohort {

/// Ranks are signed, as everywhere in the field; lists of one entry per rank are indexed by this.
constexpr std::size_t index_of(int rank) noexcept {
  return static_cast<std::size_t>(rank);
}

}  // namespace cohort
