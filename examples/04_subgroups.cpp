// SPDX-License-Identifier: BSD-3-Clause
//
// Groups within groups: rows and columns of a grid of processes, each with its own collectives. Start it with
//
//   cohort run -n 4 ./subgroups
#include <cohort/cohort.h>

#include <iostream>
#include <numeric>
#include <vector>

using namespace std::chrono_literals;

int main() {
  try {
    const auto world = cohort::new_group("shm", 30s, "cpu");
    const int columns = world->size() >= 2 ? 2 : 1;
    const int rows = world->size() / columns;
    if (rows * columns != world->size()) {
      std::cerr << "subgroups: start an even number of processes\n";
      return 1;
    }

    // Every process takes part in making every group; it gets the one it belongs to.
    cohort::ProcessGroupPtr row;
    for (int r = 0; r < rows; ++r) {
      std::vector<int> members(static_cast<std::size_t>(columns));
      std::iota(members.begin(), members.end(), r * columns);
      if (auto group = world->split_group(members)) row = group;
    }
    cohort::ProcessGroupPtr column;
    for (int c = 0; c < columns; ++c) {
      std::vector<int> members(static_cast<std::size_t>(rows));
      for (int r = 0; r < rows; ++r) members[static_cast<std::size_t>(r)] = r * columns + c;
      if (auto group = world->split_group(members)) column = group;
    }

    std::vector<int> in_row{world->rank()};
    std::vector<int> in_column{world->rank()};
    row->all_reduce(in_row);
    column->all_reduce(in_column);

    for (const auto& line :
         world->all_gather_bytes("rank " + std::to_string(world->rank()) + ": row sum " + std::to_string(in_row[0]) +
                                 ", column sum " + std::to_string(in_column[0]))) {
      if (world->rank() == 0) std::cout << line << '\n';
    }
    return 0;
  } catch (const cohort::Error& e) {
    std::cerr << "subgroups: " << e.what() << '\n';
    return 1;
  }
}
