// SPDX-License-Identifier: BSD-3-Clause
//
// The distributed tensors of a StateDict: which parts of them a rank writes, and saved values as a tensor that lies as
// the one into which they are loaded.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/state_dict.h>

#include <map>
#include <string>
#include <vector>

#include "torch/state/box.h"
#include "torch/state/save_plan.h"

namespace cohort {

struct SplitState {
  StateDict plain{};        ///< values as well
  StateDict distributed{};  ///< tensors alone
};
SplitState split_state(const StateDict& state);

/// What this rank holds of distributed tensors; `everywhere`: all ranks have them. A CheckpointError that names the
/// tensor for a Partial one.
HeldTensors held_tensors(const StateDict& distributed, bool everywhere);
/// Adds to `state` these boxes of this rank's parts, as tensors of their own (box.h), and the shapes of the wholes.
/// They share memory.
void add_parts(StateDict& state, const StateDict& distributed, const std::map<std::string, std::vector<Box>>& boxes);

/// For a file that this rank writes alone: distributed tensors of which it holds everything become plain ones. Others
/// are a CheckpointError that says what to do.
StateDict held_whole(const StateDict& state);
/// For what each rank has of its own.
void refuse_distributed(const StateDict& state);

/// `saved` as it is copied into `target`: if that is distributed, this rank's part with its layout; if it is known as a
/// part (torch/dtensor/known_parts.h), this part. A CheckpointError for a Partial target. Nothing is communicated. The
/// sizes are those of the target's whole.
at::Tensor saved_for(const at::Tensor& target, const at::Tensor& saved);

}  // namespace cohort
