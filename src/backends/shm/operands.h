// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>

#include "backends/shm/board.h"

namespace cohort::shm {

/// The values of all ranks for a range of elements, in rank order, and the ranks' factors. Not initialised: a small
/// reduction would spend longer on that than on anything else.
struct Operands {
  std::array<const void*, most_ranks> data;
  std::array<double, most_ranks> factors;
};

}  // namespace cohort::shm
