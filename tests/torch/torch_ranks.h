// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks of a group that compute with tensors: threads of this process, which start at once, or processes, which are
// forked before libtorch has started any thread.
#pragma once

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {

/// `body` gets the group; what it throws or expects in vain fails the test. One compute thread for each rank.
inline void with_torch_threads(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
  at::set_num_threads(1);
  with_threads(size, body, timeout);
}

inline void with_torch_processes(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
  with_processes(
      size,
      [&](const ProcessGroupPtr& group) {
        at::set_num_threads(1);
        body(group);
      },
      timeout);
}

}  // namespace cohort::test
