// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace cohort::dtensor {

/// Whether plain tensors count as replicated on this thread (ImplicitReplication in dtensor.h).
inline bool& replicates_plain_tensors() noexcept {
  thread_local bool replicates = false;
  return replicates;
}

}  // namespace cohort::dtensor
