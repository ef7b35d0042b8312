// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace cohort::mpi {

/// Memory of ours that is kept from call to call, and for ever once MPI may use it unasked.
class Scratch {
 public:
  enum class Use { in, out };

  std::byte* get(Use use, std::size_t bytes) {
    auto& area = areas_[static_cast<std::size_t>(use)];
    if (area.size() < bytes) {
      area.clear();  // nothing to be copied
      area.resize(bytes);
    }
    return area.data();
  }

 private:
  std::array<std::vector<std::byte>, 2> areas_{};
};

}  // namespace cohort::mpi
