// SPDX-License-Identifier: BSD-3-Clause
//
// The gradients of a model as this rank holds them, for what is decided by all of them together: clipping and loss
// scaling. A parameter may be plain, a distributed tensor, or this rank's part of one, as those of
// DistributedDataParallel are. Of a distributed tensor other ranks hold other elements, or the same ones: its layout
// says which.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <string_view>
#include <vector>

#include "torch/dtensor/layout.h"

namespace cohort {

struct LocalGradient {
  at::Tensor gradient{};        ///< undefined if the parameter has none; of a sparse gradient the values
  at::Tensor part{};            ///< this rank's elements of it
  dtensor::LayoutPtr layout{};  ///< of the gradient; null if the parameter is not distributed
  at::Device device;            ///< of the parameter
};

/// Each parameter once, those without gradients as well, since what is decided by this list has to be the same on all
/// ranks. Coalesces sparse gradients, because rows that occur twice would count twice. Throws Error if a parameter lies
/// on a mesh without this rank or is stepped in backward, and ValueError for a gradient that is Partial.
std::vector<LocalGradient> local_gradients(const std::vector<at::Tensor>& parameters, std::string_view caller);

/// Adds the group unless it is there already, or this rank is alone in it.
void add_group(std::vector<ProcessGroupPtr>& groups, const ProcessGroupPtr& group);

}  // namespace cohort
