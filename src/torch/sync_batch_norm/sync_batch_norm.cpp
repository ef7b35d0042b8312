// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/sync_batch_norm.h>

#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <utility>

#include "torch/sync_batch_norm/normalize.h"

namespace cohort {

namespace {

SyncBatchNormOptions checked(SyncBatchNormOptions options) {
  if (options.num_features() < 1) {
    throw ValueError(fmt::format("SyncBatchNorm: num_features is {}; it must be at least 1", options.num_features()));
  }
  if (!options.process_group()) options.process_group(current_process_group());
  return options;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const SyncBatchNormOptions& given) : NormImplBase(checked(given)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  check_batch_norm_input(input, options.num_features());
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  double momentum = options.momentum().has_value() ? *options.momentum() : 0.0;
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    // Without a momentum the running statistics are the mean over all batches.
    if (!options.momentum().has_value()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  return batch_norm_over(options.process_group(), {.input = input,
                                                   .weight = weight,
                                                   .bias = bias,
                                                   .running_mean = running_mean,
                                                   .running_var = running_var,
                                                   .is_training = is_training() || !options.track_running_stats(),
                                                   .momentum = momentum,
                                                   .eps = options.eps()});
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("cohort::SyncBatchNorm({}, eps={}, momentum={}, affine={}, track_running_stats={}, group={})",
                        options.num_features(), options.eps(),
                        options.momentum().has_value() ? fmt::to_string(*options.momentum()) : "none", options.affine(),
                        options.track_running_stats(),
                        options.process_group() ? options.process_group()->id() : "none");
}

}  // namespace cohort
