// SPDX-License-Identifier: BSD-3-Clause
//
// A rank that makes a group with the others, or joins theirs if it is a replacement:
//   group_member makes|dies [NAME]
// NAME is the group's; "dies": when all others are about to make one.
#include <cohort/launch.h>
#include <cohort/new_group.h>
#include <cohort/rendezvous.h>

#include <csignal>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

int main(int count, char** arguments) {
  using namespace std::chrono_literals;
  const std::string name = count > 2 ? arguments[2] : "";
  try {
    if (count > 1 && std::string(arguments[1]) == "dies") {
      cohort::rendezvous("env://", {.timeout = 20s, .name = name});  // with the others' new_group()
      static_cast<void>(std::raise(SIGKILL));
    }
    const auto launch = cohort::find_launch(cohort::Env::read()).value();
    const auto group = launch.replacement > 0 ? cohort::join_group("shm", 20s, "cpu", {}, {.name = name})
                                              : cohort::new_group("shm", 20s, "cpu", {}, {.name = name});
    std::vector<int> sum{1};
    group->all_reduce(sum);
    std::cout << "sum " << sum[0] << " in attempt " << launch.restart_count << '\n';
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
  return 0;
}
