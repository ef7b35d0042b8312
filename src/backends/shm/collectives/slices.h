// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/rank_index.h"

namespace cohort::shm {

/// Elements divided among ranks. Every slice but the last is a whole number of cache lines, so that no two ranks write
/// the same line.
class Slices {
 public:
  Slices(std::size_t count, std::size_t element_size, int ranks) : count_(count) {
    const std::size_t line = std::max<std::size_t>(1, 64 / element_size);
    const auto n = static_cast<std::size_t>(ranks);
    each_ = ((count + n - 1) / n + line - 1) / line * line;
  }
  std::size_t begin(int rank) const { return std::min(count_, index_of(rank) * each_); }
  std::size_t size(int rank) const { return begin(rank + 1) - begin(rank); }

 private:
  std::size_t count_;
  std::size_t each_;
};

}  // namespace cohort::shm
