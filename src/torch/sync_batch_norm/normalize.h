// SPDX-License-Identifier: BSD-3-Clause
//
// The computations of SyncBatchNorm.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

namespace cohort {

/// The arguments of aten::batch_norm; absent tensors are undefined.
struct BatchNormArguments {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  bool is_training = false;  ///< uses the statistics of the batch and not the running ones
  double momentum = 0;
  double eps = 0;
};

/// A ValueError for fewer than two dimensions, no channels, or another number of channels than `channels` if that is
/// not negative.
void check_batch_norm_input(const at::Tensor& input, std::int64_t channels);

/// Normalises over all ranks in training; otherwise, and with a null group or a group of one rank, it is
/// aten::batch_norm.
at::Tensor batch_norm_over(const ProcessGroupPtr& group, const BatchNormArguments& arguments);

}  // namespace cohort
