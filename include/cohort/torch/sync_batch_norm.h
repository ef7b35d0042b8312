// SPDX-License-Identifier: BSD-3-Clause
//
// Batch normalisation over the batches of all ranks as if they were one. With DistributedDataParallel each rank has a
// part of the batch, and plain batch norm would normalise each part by itself.
//
//   auto net = std::make_shared<ResNet>();                                 // with torch::nn::BatchNorm2d inside
//   cohort::convert_sync_batch_norm(*net, pg);                              // all of them, in place
//   cohort::DistributedDataParallel ddp(net, {.process_group = pg});
//
//   cohort::SyncBatchNorm norm(cohort::SyncBatchNormOptions(64).process_group(pg));      // or as a layer
//
// In training mode forward gathers each rank's mean, variance and count (2C+1 numbers for C channels), and backward
// sums two numbers for each channel; both block. All ranks must therefore run these layers in the same order, including
// a rank whose batch is empty, which contributes nothing. The gradients of weight and bias are the rank's own;
// DistributedDataParallel averages them. In eval mode nothing is sent. Without a group, or in a group of one rank,
// these are plain layers. Second derivatives (create_graph) are an Error.
//
// The collectives of a group run one after another: if the buckets of DistributedDataParallel and these layers share a
// group, backward waits for the buckets that are under way. A group of their own (pg->split_group with all ranks)
// avoids that.
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

/// The options of torch::nn::BatchNorm and the group; null: the current group when the layer is made.
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
  /// A ValueError if num_features is below 1.
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options);

  /// The input is [batch, channels, ...] with any number of further dimensions. Fewer than two dimensions, or another
  /// number of channels, are a ValueError.
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

/// Makes every BatchNorm1d, 2d and 3d in `module`, or `module` itself, normalise over the group, and returns their
/// number. Null: the current group; if there is none, that is an Error that tells how to set one.
///
/// The layers stay the same objects, so all holders that point to them (members of modules, Sequential, ModuleList, the
/// caller's variables) see the change, and parameters, statistics, options and mode are untouched. The conversion
/// survives to(), torch::save and torch::load, but clone() and reset() make plain layers again. Converting again sets
/// another group. One check of libtorch remains: a rank with a single value per channel ([1, C]) is refused, which
/// SyncBatchNorm accepts.
///
/// How it works: the forward of these layers cannot be overridden, but it ends in aten::batch_norm, which gets the
/// running mean. That tensor gets a dispatch key for which aten::batch_norm, and nothing else, has a kernel of ours.
COHORT_API std::size_t convert_sync_batch_norm(torch::nn::Module& module, ProcessGroupPtr process_group = {});
template <class M>
std::size_t convert_sync_batch_norm(const std::shared_ptr<M>& module, ProcessGroupPtr process_group = {}) {
  return convert_sync_batch_norm(static_cast<torch::nn::Module&>(*module), std::move(process_group));
}
template <class M>
std::size_t convert_sync_batch_norm(const torch::nn::ModuleHolder<M>& module, ProcessGroupPtr process_group = {}) {
  return convert_sync_batch_norm(static_cast<torch::nn::Module&>(*module.ptr()), std::move(process_group));
}

/// The group over which the layer normalises; null for plain layers and other modules.
COHORT_API ProcessGroupPtr sync_batch_norm_group(const torch::nn::Module& module);

}  // namespace cohort
