// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace cohort {

/// Where a rank is among the parts of a partition.
struct OwnPart {
  std::size_t index = 0;  ///< of its part
  int rank = 0;           ///< its rank in that part
};

inline const std::vector<int>& ranks_of(const std::vector<int>& part) {
  return part;
}
inline const std::vector<int>& ranks_of(const BackendSplit& part) {
  return part.ranks;
}

/// nullopt: it is in none. `parts` is a range of lists of ranks, or of BackendSplit.
template <class Parts>
std::optional<OwnPart> find_own_part(const Parts& parts, int rank) {
  std::size_t index = 0;
  for (const auto& part : parts) {
    const auto& ranks = ranks_of(part);
    const auto place = std::find(ranks.begin(), ranks.end(), rank);
    if (place != ranks.end()) return OwnPart{.index = index, .rank = static_cast<int>(place - ranks.begin())};
    ++index;
  }
  return std::nullopt;
}

}  // namespace cohort
