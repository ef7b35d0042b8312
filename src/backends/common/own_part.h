// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "backends/common/failure.h"
#include "core/rank_index.h"

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

/// Why a part could not be made, in the numbers of the group that was divided. The ranks outside the part are at their next
/// operation, where all ranks of the part look late: they are told which one is at fault.
inline Failure failure_of_part(const BackendError& error, const BackendSplit& part, int reporter) {
  const auto rank = error.context().rank;
  return {.kind = error.kind(),
          .rank = rank ? part.ranks.at(index_of(*rank)) : -1,
          .reporter = reporter,
          .text = fmt::format("{} (these are numbers within the part; its ranks are {} here)", error.message(),
                              fmt::join(part.ranks, ", "))};
}

}  // namespace cohort
