// SPDX-License-Identifier: BSD-3-Clause
//
// What kernels and collectives were chosen by: everything about a tensor but its values. Comparing costs some
// nanoseconds, because it is done for every parameter and gradient at every replay; the words for a difference are
// found afterwards.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/DimVector.h>
#include <cohort/torch/capture_watch.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "torch/capture/tensor_hooks.h"
#include "torch/dtensor/impl.h"
#include "torch/dtensor/layout.h"

namespace cohort::recording {

/// Of a distributed tensor: its global metadata, how it lies on the mesh, and the metadata of this rank's part.
class TensorMetadata {
 public:
  /// Undefined tensors have metadata too.
  explicit TensorMetadata(const at::Tensor& tensor);

  bool fits(const at::Tensor& tensor) const noexcept {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    return fits(impl, impl.requires_grad());
  }
  /// For those who know already whether it requires a gradient, which libtorch answers in another library.
  bool fits(const c10::TensorImpl& impl, bool requires_grad) const noexcept {
    // The keys tell undefined tensors, device types and layouts apart, so the rest may be asked for.
    if (impl.key_set() != keys_) return false;
    if (!is_defined_) return true;
    return impl.dtype() == dtype_ && requires_grad == requires_grad_ &&
           (device_.is_cpu() || impl.device() == device_) && are_equal(impl.sizes(), sizes_) &&
           (!is_strided_ || are_equal(impl.strides(), strides_)) && (local_ == nullptr || lies_alike(impl));
  }
  bool is_plain_on_cpu() const noexcept { return is_defined_ && is_strided_ && local_ == nullptr && device_.is_cpu(); }
  /// How a tensor that does not fit differs: "fc1.weight: sizes were [8, 16] and are [4, 16]".
  std::string failure(std::string_view name, const at::Tensor& tensor) const;

 private:
  /// They are mostly one to four numbers, for which a call of memcmp() takes longer.
  static bool are_equal(at::IntArrayRef a, const c10::DimVector& b) noexcept {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }
  bool lies_alike(const c10::TensorImpl& impl) const noexcept;
  std::string difference(const at::Tensor& tensor) const;

  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_ = c10::kCPU;
  bool is_defined_ = false;
  bool is_strided_ = false;
  bool requires_grad_ = false;
  c10::DimVector sizes_;
  c10::DimVector strides_;
  dtensor::LayoutPtr layout_;                    ///< null if the tensor is not distributed
  std::shared_ptr<const TensorMetadata> local_;  ///< null likewise
};

/// Where the elements begin, of a distributed tensor those of this rank's part; null for sparse ones.
inline const void* memory_of(const at::Tensor& tensor) {
  const auto* const distributed = dtensor::find_impl(tensor);
  const auto& impl = *(distributed != nullptr ? distributed->local() : tensor).unsafeGetTensorImpl();
  const auto& storage = impl.unsafe_storage();
  if (!storage) return nullptr;
  return static_cast<const char*>(storage.data()) + static_cast<std::size_t>(impl.storage_offset()) * impl.itemsize();
}

/// Tensors that have the same metadata share it: of a thousand parameters few differ, and what they share stays in the
/// cache, which is most of what the comparison costs.
class MetadataPool {
 public:
  /// Valid as long as the pool.
  const TensorMetadata& of(const at::Tensor& tensor);

 private:
  std::deque<TensorMetadata> known_;
};

/// A tensor that a recording uses by its memory: a parameter or a buffer.
class TensorGuard {
 public:
  TensorGuard(const WatchedTensor& watched, MetadataPool& pool)
      : tensor_(watched.tensor),
        metadata_(&pool.of(tensor_)),
        hooks_(hooks_of(tensor_)),
        name_(std::make_unique<const std::string>(watched.name)) {
    if (!metadata_->is_plain_on_cpu()) {
      memory_ = memory_of(tensor_);
      return;
    }
    const auto& impl = *tensor_.unsafeGetTensorImpl();
    memory_ = impl.unsafe_storage().unsafeGetStorageImpl();
    offset_ = impl.storage_offset();
  }

  const at::Tensor& tensor() const noexcept { return tensor_; }
  const std::string& name() const noexcept { return *name_; }
  bool holds() const { return holds(AutogradView(tensor_)); }
  bool holds(const AutogradView& autograd) const {
    const auto& impl = *tensor_.unsafeGetTensorImpl();
    return metadata_->fits(impl, autograd.requires_grad()) && has_its_memory(impl) && autograd.hooks() == hooks_;
  }
  /// If it does not hold.
  std::string failure() const;

 private:
  static constexpr std::int64_t by_address = -1;

  /// A recording shares the storage object, so that on the CPU it need not look whether that has other memory.
  bool has_its_memory(const c10::TensorImpl& impl) const {
    if (offset_ == by_address) return memory_of(tensor_) == memory_;
    return impl.unsafe_storage().unsafeGetStorageImpl() == memory_ && impl.storage_offset() == offset_;
  }

  // One cache line.
  at::Tensor tensor_;
  const TensorMetadata* metadata_;
  const void* memory_ = nullptr;  ///< its storage, or where it begins
  std::int64_t offset_ = by_address;
  TensorHooks hooks_;
  std::unique_ptr<const std::string> name_;
};

}  // namespace cohort::recording
