// SPDX-License-Identifier: BSD-3-Clause
//
// Tests that run on every backend whose ranks are processes: shm, gloo and hybrid, whose ranks the test starts, or that
// of the launcher which has started this program (tests/backends/mpi).
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "torch/torch_ranks.h"

namespace cohort::test {

class OnBackend : public ::testing::TestWithParam<Ranks> {
 protected:
  /// Ranks that a test starts are forked before libtorch has any thread, which is why tests use no tensors outside of
  /// `body`.
  static void run(const GroupBody& body) {
    GetParam().run([&](const ProcessGroupPtr& group) {
      at::set_num_threads(1);
      body(group);
    });
  }
};

inline std::vector<Ranks> process_backends() {
  using Are = Ranks::Are;
  if (is_launched()) return {{.are = Are::launched, .size = launched_size(), .backend = backend_under_test()}};
  std::vector<Ranks> all{{.are = Are::processes, .size = 2}};
#ifdef COHORT_TEST_HAS_GLOO
  all.push_back({.are = Are::processes, .size = 3, .backend = "gloo"});
  all.push_back({.are = Are::processes, .size = 4, .backend = "hybrid", .hosts = 2});
#endif
  return all;
}

}  // namespace cohort::test
