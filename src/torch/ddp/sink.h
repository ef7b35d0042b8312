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

}  // namespace cohort::ddp
