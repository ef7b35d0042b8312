// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backends/common/failure.h"
#include "core/rank_index.h"
#include "group/own_part.h"

namespace cohort {

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
