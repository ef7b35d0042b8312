// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks as threads for the tests of functional collectives. Each thread has a registry of its own, in which its group
// is found by id: an id alone would not say which of the threads is meant.
#pragma once

#include <cohort/group_registry.h>

#include "torch/torch_ranks.h"

namespace cohort::test {

inline void with_named_threads(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
  with_torch_threads(
      size,
      [&](const ProcessGroupPtr& group) {
        const GroupRegistryScope names;
        register_group(group->id(), group);
        body(group);
      },
      timeout);
}

}  // namespace cohort::test
