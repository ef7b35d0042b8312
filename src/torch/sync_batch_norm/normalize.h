// SPDX-License-Identifier: BSD-3-Clause
//
// The computation of SyncBatchNorm.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

namespace cohort {

/// What aten::batch_norm takes; undefined tensors for what is not there.
struct BatchNormArguments {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  bool is_training = false;  ///< statistics of the batch, not the running ones
  double momentum = 0;
  double eps = 0;
};

/// A ValueError for fewer than two dimensions, no channels, or not as many as `channels` (where that is not negative).
void check_batch_norm_input(const at::Tensor& input, std::int64_t channels);

/// Over all ranks in training, else (and with a null group or one of size 1) aten::batch_norm.
at::Tensor batch_norm_over(const ProcessGroupPtr& group, const BatchNormArguments& arguments);

}  // namespace cohort
