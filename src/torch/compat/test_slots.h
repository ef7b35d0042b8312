// SPDX-License-Identifier: BSD-3-Clause
//
// Places in libtorch that it keeps for its own tests and uses nowhere else, from 1.13 to 2.14. They carry what belongs
// to a thread's work from thread to thread, and a kind of tensor of ours through the dispatcher; libtorch offers
// nothing else for that. A new version is checked by docs/libtorch.md, "What a new version needs".
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace cohort::test_slots {

/// Who observes a step (dispatch/step_observer.cpp). An enumerator at first, an object of the library in 2.14.
inline auto step_observer() {
  return c10::DebugInfoKind::TEST_INFO;
}
/// Whether plain tensors count as replicated (dtensor/implicit_replication.h).
inline auto implicit_replication() {
  return c10::DebugInfoKind::TEST_INFO_2;
}
/// A key above autograd, for tensors that have batch norm over a group (sync_batch_norm/convert.cpp).
constexpr auto batch_norm_over_group = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
/// The same where libtorch's macros want the name alone.
#define COHORT_BATCH_NORM_OVER_GROUP TESTING_ONLY_GenericWrapper

}  // namespace cohort::test_slots
