// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/cohort.h>

#include <chrono>
#include <iostream>
#include <vector>

using namespace std::chrono_literals;

int main() {
  auto pg = cohort::new_group("auto", 30s, "cpu");  // without a launcher: a group of one
  std::vector<float> x(1024, 2.0F);
  pg->all_reduce(x);
  std::cout << "cohort " << cohort::version().text << ": a group of " << pg->size() << ", sum " << x[0] << '\n';
  return x[0] == 2.0F ? 0 : 1;
}
