// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torch/ddp/reducer.h"

namespace cohort::ddp {

/// Passes forward's outputs through a function that leaves values and gradients as they are. It keeps gradients that do
/// not exist undefined, so that an output that is not part of the loss makes its parameters unused instead of waited
/// for, and it tells the reducer when backward begins. Outputs without a graph stay as they are; returns false if that
/// is true of all of them.
bool pass_through_sink(const std::vector<at::Tensor*>& outputs, const std::shared_ptr<Reducer>& reducer, bool clones);

/// Tells the reducer whenever a backward runs through the graph of these outputs, which are those of a forward that
/// synchronises. It costs one hook for each function that made one of them.
void watch_backwards_of(const std::vector<at::Tensor*>& outputs, const std::shared_ptr<Reducer>& reducer);

}  // namespace cohort::ddp
