// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include "torch/compat/test_slots.h"

namespace cohort::dtensor {

/// Says that plain tensors count as replicated (ImplicitReplication in dtensor.h). It is kept where libtorch keeps what
/// belongs to a thread's work and carries it along: for CUDA tensors backward runs on a thread of the autograd engine,
/// and there too a mask that forward took for replicated must be one.
struct PlainTensorsAreReplicated : c10::DebugInfoBase {
  static auto kind() { return test_slots::implicit_replication(); }
};

inline bool replicates_plain_tensors() {
  return dynamic_cast<PlainTensorsAreReplicated*>(c10::ThreadLocalDebugInfo::get(PlainTensorsAreReplicated::kind())) !=
         nullptr;
}

}  // namespace cohort::dtensor
