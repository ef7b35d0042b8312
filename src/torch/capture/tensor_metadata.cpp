// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/tensor_metadata.h"

#include <c10/core/ScalarTypeToTypeMeta.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace cohort::recording {

namespace {

std::string text_of(at::IntArrayRef numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

}  // namespace

TensorMetadata::TensorMetadata(const at::Tensor& tensor)
    : keys_(tensor.unsafeGetTensorImpl()->key_set()), is_defined_(tensor.defined()) {
  if (!is_defined_) return;
  const auto& impl = *tensor.unsafeGetTensorImpl();
  dtype_ = impl.dtype();
  device_ = impl.device();
  is_strided_ = impl.layout() == c10::kStrided;
  requires_grad_ = impl.requires_grad();
  sizes_ = impl.sizes();
  if (is_strided_) strides_ = impl.strides();
  if (const auto* const distributed = dtensor::find_impl(tensor)) {
    layout_ = distributed->layout();
    local_ = std::make_shared<const TensorMetadata>(distributed->local());
  }
}

bool TensorMetadata::lies_alike(const c10::TensorImpl& impl) const noexcept {
  if (!dtensor::is_distributed_impl(impl)) return false;
  const auto& distributed = static_cast<const dtensor::DTensorImpl&>(impl);
  return dtensor::equal(distributed.layout(), layout_) && local_->fits(distributed.local());
}

std::string TensorMetadata::failure(std::string_view name, const at::Tensor& tensor) const {
  const auto text = difference(tensor);
  return fmt::format("{}{} {}", name, text.starts_with("was ") ? "" : ":", text);
}

std::string TensorMetadata::difference(const at::Tensor& tensor) const {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  if (tensor.defined() != is_defined_) return is_defined_ ? "was defined and is not" : "was undefined and is defined";
  const TensorMetadata now(tensor);
  if (now.dtype_ != dtype_) {
    return fmt::format("dtype was {} and is {}", c10::toString(c10::typeMetaToScalarType(dtype_)),
                       c10::toString(c10::typeMetaToScalarType(now.dtype_)));
  }
  if (now.device_ != device_) return fmt::format("device was {} and is {}", device_.str(), now.device_.str());
  if ((now.layout_ == nullptr) != (layout_ == nullptr)) {
    return layout_ == nullptr ? "was a plain tensor and is a distributed one" : "was distributed and is a plain tensor";
  }
  if (now.is_strided_ != is_strided_) {
    return is_strided_ ? "was dense and is sparse" : "was sparse and is dense";
  }
  if (now.sizes_ != sizes_) return fmt::format("sizes were {} and are {}", text_of(sizes_), text_of(now.sizes_));
  if (layout_ != nullptr) {
    if (layout_->mesh != now.layout_->mesh) {
      return fmt::format("mesh was {} and is {}", to_string(layout_->mesh), to_string(now.layout_->mesh));
    }
    if (layout_->placements != now.layout_->placements) {
      return fmt::format("placements were {} and are {}", to_string(layout_->placements),
                         to_string(now.layout_->placements));
    }
  }
  if (now.strides_ != strides_) {
    return fmt::format("strides were {} and are {}", text_of(strides_), text_of(now.strides_));
  }
  if (now.requires_grad_ != requires_grad_) {
    return fmt::format("requires_grad was {} and is {}", requires_grad_, now.requires_grad_);
  }
  if (layout_ != nullptr) {
    const auto& part = dtensor::find_impl(tensor)->local();
    if (!local_->fits(part)) return fmt::format("{} (of this rank's part)", local_->difference(part));
  }
  // An inference tensor, a conjugate or negative view.
  return fmt::format("dispatch keys were {} and are {}", c10::toString(keys_), c10::toString(impl.key_set()));
}

const TensorMetadata& MetadataPool::of(const at::Tensor& tensor) {
  // Only the newest are looked at, so that a model of many shapes does not take quadratic time.
  constexpr std::ptrdiff_t newest = 32;
  const auto end = known_.rbegin() + std::min(newest, static_cast<std::ptrdiff_t>(known_.size()));
  const auto found = std::find_if(known_.rbegin(), end, [&](const TensorMetadata& each) { return each.fits(tensor); });
  return found != end ? *found : known_.emplace_back(tensor);
}

std::string TensorGuard::failure() const {
  if (!metadata_->fits(tensor_)) return metadata_->failure(name(), tensor_);
  if (hooks_of(tensor_) != hooks_) return fmt::format("a backward hook of {} was registered or removed", name());
  return fmt::format("{} has other memory than before (set_data, or a move to another device and back)", name());
}

}  // namespace cohort::recording
