// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torch/ddp/reducer.h"

namespace cohort::ddp {

/// Passes forward's outputs on through a function that does nothing to them but let gradients that are not there stay
/// undefined, so that an output that the loss does not use makes its parameters unused instead of waited for; and that
/// tells the reducer when backward begins. Outputs without a graph stay as they are; false if
/// all of them do.
bool pass_through_sink(const std::vector<at::Tensor*>& outputs, const std::shared_ptr<Reducer>& reducer, bool clones);

}  // namespace cohort::ddp
