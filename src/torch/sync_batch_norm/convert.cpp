// SPDX-License-Identifier: BSD-3-Clause
//
// Converts batch norm layers in place. torch::nn::BatchNorm2d is a pointer to a class whose forward is not virtual, and
// modules keep such pointers as members, so a layer that replaces another one would never be called. But forward calls
// aten::batch_norm, and the dispatcher chooses its kernel by the dispatch keys of all arguments: the running mean gets
// an additional key, for which only aten::batch_norm has a kernel.
#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/sync_batch_norm.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <utility>

#include "torch/compat/optional_tensor.h"
#include "torch/compat/private_members.h"
#include "torch/compat/test_slots.h"
#include "torch/sync_batch_norm/normalize.h"

namespace cohort {

namespace {

constexpr auto sync_key = test_slots::batch_norm_over_group;

/// A tensor that has the key and its group. set_data(), which to() and torch::load call, replaces its content and would
/// drop the key.
class MarkedTensor final : public c10::TensorImpl {
 public:
  MarkedTensor(const at::Tensor& tensor, ProcessGroupPtr group)
      : TensorImpl(c10::Storage(tensor.storage()), tensor.key_set().add(sync_key), tensor.dtype()),
        group_(std::move(group)) {
    set_storage_offset(tensor.storage_offset());
    set_sizes_and_strides(tensor.sizes(), tensor.strides());
  }

  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    TensorImpl::shallow_copy_from(other);
    key_set_ = key_set_.add(sync_key);
  }

  const ProcessGroupPtr& group() const noexcept { return group_; }
  void set_group(ProcessGroupPtr group) { group_ = std::move(group); }

 private:
  ProcessGroupPtr group_;
};

MarkedTensor* mark_of(const at::Tensor& tensor) {
  return tensor.defined() ? dynamic_cast<MarkedTensor*>(tensor.unsafeGetTensorImpl()) : nullptr;
}

at::Tensor batch_norm_of_marked(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                                double momentum, double eps, bool /*cudnn_enabled*/) {
  const c10::impl::ExcludeDispatchKeyGuard below(sync_key);
  const auto mean = tensor_or_undefined(running_mean);
  const auto* const mark = mark_of(mean);
  const auto variance = tensor_or_undefined(running_var);
  return batch_norm_over(mark == nullptr ? nullptr : mark->group(),
                         {.input = input,
                          .weight = tensor_or_undefined(weight),
                          .bias = tensor_or_undefined(bias),
                          // A layer without running statistics has the mark alone.
                          .running_mean = variance.defined() ? mean : at::Tensor(),
                          .running_var = variance,
                          .is_training = training,
                          .momentum = momentum,
                          .eps = eps});
}

template <class Layer>
bool convert(torch::nn::Module& module, const ProcessGroupPtr& group) {
  auto* const layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr) return false;
  if (auto* const mark = mark_of(layer->running_mean)) {
    mark->set_group(group);
    return true;
  }
  const bool has_statistics = layer->running_mean.defined();
  const auto plain = has_statistics ? layer->running_mean : at::empty({0});
  layer->running_mean = at::Tensor(c10::make_intrusive<MarkedTensor>(plain, group));
  // to() and torch::load would ignore a member that is not the registered buffer.
  if (has_statistics) buffers_in(module)["running_mean"] = layer->running_mean;
  return true;
}

template <class Layer>
ProcessGroupPtr group_in(const torch::nn::Module& module) {
  const auto* const layer = dynamic_cast<const Layer*>(&module);
  const auto* const mark = layer == nullptr ? nullptr : mark_of(layer->running_mean);
  return mark == nullptr ? nullptr : mark->group();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, COHORT_BATCH_NORM_OVER_GROUP, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, COHORT_BATCH_NORM_OVER_GROUP, library) {
  library.impl("batch_norm", batch_norm_of_marked);
}

std::size_t convert_sync_batch_norm(torch::nn::Module& module, ProcessGroupPtr given) {
  const auto group = given ? std::move(given) : require_current_process_group("convert_sync_batch_norm");
  std::set<const torch::nn::Module*> converted;  // a layer may be in several places
  module.apply([&](torch::nn::Module& each) {
    if (convert<torch::nn::BatchNorm1dImpl>(each, group) || convert<torch::nn::BatchNorm2dImpl>(each, group) ||
        convert<torch::nn::BatchNorm3dImpl>(each, group)) {
      converted.insert(&each);
    }
  });
  return converted.size();
}

ProcessGroupPtr sync_batch_norm_group(const torch::nn::Module& module) {
  if (const auto* const layer = dynamic_cast<const SyncBatchNormImpl*>(&module)) return layer->options.process_group();
  if (auto group = group_in<torch::nn::BatchNorm1dImpl>(module)) return group;
  if (auto group = group_in<torch::nn::BatchNorm2dImpl>(module)) return group;
  return group_in<torch::nn::BatchNorm3dImpl>(module);
}

}  // namespace cohort
