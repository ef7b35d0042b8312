// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

namespace cohort {

/// Where this rank is in the agreement on who survives (survivor_agreement.h), which takes another round if a rank dies
/// in it, or if the user tries again after an error.
struct ShrinkRound {
  int number = 1;
  std::vector<int> candidates{};  ///< empty: all ranks
};

}  // namespace cohort
