// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/operation.h>

#include <array>
#include <optional>

#include "backends/shm/protocol/board.h"

namespace cohort::shm {

/// The values of all ranks for a range of elements, in rank order, and the ranks' factors. Not initialised: a small
/// reduction would spend longer on that than on anything else.
struct Operands {
  std::array<const void*, most_ranks> data;
  std::array<double, most_ranks> factors;
};

/// This rank's factor of a premul_sum, which ranks publish beside their posts.
inline std::optional<double> factor_of(const Operation& op) {
  if (op.reduce.kind() != ReduceOp::Kind::premul_sum) return std::nullopt;
  return op.reduce.factor();
}

}  // namespace cohort::shm
