// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

namespace cohort {

/// Where a rank is among the parts of a partition.
struct OwnPart {
  std::size_t index = 0;  ///< of its part
  int rank = 0;           ///< its rank in that part
};

/// nullopt: it is in none.
inline std::optional<OwnPart> find_own_part(std::span<const BackendSplit> parts, int rank) {
  for (std::size_t index = 0; index < parts.size(); ++index) {
    const auto& ranks = parts[index].ranks;
    const auto place = std::find(ranks.begin(), ranks.end(), rank);
    if (place != ranks.end()) return OwnPart{.index = index, .rank = static_cast<int>(place - ranks.begin())};
  }
  return std::nullopt;
}

}  // namespace cohort
