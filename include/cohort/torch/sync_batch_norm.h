// SPDX-License-Identifier: BSD-3-Clause
//
// Batch normalisation over the batches of all ranks, as if they were one. With DistributedDataParallel each rank sees a
// small part of the batch, and plain batch norm would normalise each part by itself.
//
//   auto net = std::make_shared<ResNet>();                                 // with torch::nn::BatchNorm2d inside
//   cohort::convert_sync_batchnorm(*net, pg);                              // all of them, in place
//   cohort::DistributedDataParallel ddp(net, {.process_group = pg});
//
//   cohort::SyncBatchNorm norm(cohort::SyncBatchNormOptions(64).process_group(pg));      // a layer of one's own
//
// In training mode forward gathers each rank's mean, variance and count (2C+1 numbers) and backward sums two numbers
// for each channel; both wait. So all ranks must run these layers in the same order, also a rank whose batch is empty,
// which takes part and counts for nothing. The gradients of weight and bias are the rank's own: averaging them is
// DistributedDataParallel's work. In eval mode nothing is sent, and without a group, or in a group of one, these are
// plain layers. Second derivatives (create_graph) are refused.
//
// Collectives of one group run one after another: where DistributedDataParallel's buckets and these layers share a
// group, backward waits for the buckets on their way. A group of their own (pg->split_group with all ranks) avoids it.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <type_traits>
#include <utility>

namespace cohort {

/// Those of torch::nn::BatchNorm, and the group; none: the current one when the layer is made.
struct COHORT_API SyncBatchNormOptions {
  using Momentum = std::remove_cvref_t<decltype(std::declval<const torch::nn::BatchNormOptions&>().momentum())>;

  explicit(false) SyncBatchNormOptions(std::int64_t num_features) : num_features_(num_features) {}
  explicit(false) SyncBatchNormOptions(const torch::nn::BatchNormOptions& options)
      : num_features_(options.num_features()),
        eps_(options.eps()),
        momentum_(options.momentum()),
        affine_(options.affine()),
        track_running_stats_(options.track_running_stats()) {}

  TORCH_ARG(std::int64_t, num_features);
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(Momentum, momentum) = 0.1;
  TORCH_ARG(bool, affine) = true;
  TORCH_ARG(bool, track_running_stats) = true;
  TORCH_ARG(ProcessGroupPtr, process_group) = nullptr;
};

class COHORT_API SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, SyncBatchNormOptions> {
 public:
  /// num_features below 1 is a ValueError.
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options);

  /// [batch, channels, ...], with 0 to 3 dimensions more or as many as one likes. Fewer than two dimensions, or another
  /// number of channels, is a ValueError.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;
};

/// See SyncBatchNormImpl.
class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
};

/// Makes every BatchNorm1d, 2d and 3d in `module` (and `module`, where it is one) normalise over the group; null: the
/// current group, and none is an Error that says how to set one. How many there were.
///
/// The layers stay the objects they are, so holders that point to them (members of modules, Sequential, ModuleList, the
/// caller's variables) see the change, and parameters, statistics, options and mode are untouched. They survive to(),
/// torch::save and torch::load; what clone() and reset() make is plain again. Converting again sets another group. One
/// check of libtorch's remains: a rank with a single value for each channel ([1, C]) is refused; SyncBatchNorm takes
/// it.
///
/// How it is done: forward of these layers cannot be overridden, but it ends in aten::batch_norm, which gets the
/// running mean. That tensor is given a mark which leads there, and only there, to this code.
COHORT_API std::size_t convert_sync_batchnorm(torch::nn::Module& module, ProcessGroupPtr group = {});
template <class M>
std::size_t convert_sync_batchnorm(const std::shared_ptr<M>& module, ProcessGroupPtr group = {}) {
  return convert_sync_batchnorm(static_cast<torch::nn::Module&>(*module), std::move(group));
}
template <class M>
std::size_t convert_sync_batchnorm(const torch::nn::ModuleHolder<M>& module, ProcessGroupPtr group = {}) {
  return convert_sync_batchnorm(static_cast<torch::nn::Module&>(*module.ptr()), std::move(group));
}

/// The group over which this layer normalises; null for plain layers and other modules.
COHORT_API ProcessGroupPtr sync_batchnorm_group(const torch::nn::Module& module);

}  // namespace cohort
