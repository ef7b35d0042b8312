// SPDX-License-Identifier: BSD-3-Clause
//
// Uses a backend of one's own (store_backend.h) like any other:
//
//   cohort run -n 3 ./backend
#include <cohort/cohort.h>

#include <iostream>
#include <vector>

#include "store_backend.h"

using namespace std::chrono_literals;

int main() {
  try {
    example::register_store_backend();
    const auto pg = cohort::new_group("store", 30s, "cpu", {{"chunk_bytes", 1 << 16}});
    std::vector<float> x(100'000, static_cast<float>(pg->rank() + 1));
    pg->all_reduce(x);
    if (pg->rank() == 0) std::cout << pg->size() << " ranks on backend " << pg->name() << ": " << x[0] << '\n';
    return 0;
  } catch (const cohort::Error& e) {
    std::cerr << "backend: " << e.what() << '\n';
    return 1;
  }
}
