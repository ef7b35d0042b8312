// SPDX-License-Identifier: BSD-3-Clause
//
// The first collective: every process has numbers, and all of them get the sum. Start it with
//
//   cohort run -n 4 ./all_reduce
#include <cohort/cohort.h>

#include <iostream>
#include <vector>

using namespace std::chrono_literals;

int main() {
  try {
    // From what the launcher set; returns when all processes are there.
    const auto pg = cohort::new_group("shm", 30s, "cpu");

    std::vector<float> x(1024, static_cast<float>(pg->rank() + 1));
    pg->all_reduce(x);  // in place, sum; the result is there on return

    auto work = pg->all_reduce(x, {.op = cohort::ReduceOp::max(), .async_op = true, .timeout = 5s});
    // ... something else meanwhile ...
    work.wait();

    if (pg->rank() == 0) {
      std::cout << "1 + ... + " << pg->size() << " is " << x.front() << ", say all " << pg->size() << " processes\n";
    }
    return 0;
  } catch (const cohort::Error& e) {
    std::cerr << "all_reduce: " << e.what() << '\n';
    return 1;
  }
}
