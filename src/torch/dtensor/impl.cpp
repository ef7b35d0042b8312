// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/impl.h"

#include <c10/util/DimVector.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "torch/dtensor/dispatch.h"

namespace cohort::dtensor {

namespace {

const TensorHandler dtensor_handler(DistributedTensors{.impl = &typeid(DTensorImpl), .run = &dispatch});

c10::DispatchKeySet keys_of(const at::Tensor& local) {
  const auto backend = local.is_cpu()    ? c10::DispatchKey::CPU
                       : local.is_cuda() ? c10::DispatchKey::CUDA
                                         : c10::computeDispatchKey(local.scalar_type(), local.layout(), local.device());
  return c10::DispatchKeySet({backend, wrapper_key});
}

}  // namespace

c10::DimVector dense_strides(at::IntArrayRef sizes) {
  c10::DimVector strides(sizes.size());
  std::int64_t next = 1;
  for (auto d = sizes.size(); d-- > 0;) {
    strides[d] = next;
    next *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

c10::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef like) {
  const auto dims = sizes.size();
  c10::DimVector strides(dims);
  std::int64_t next = 1;
  c10::DimVector order(dims);
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(like.begin(), like.end(), std::greater<>())) {
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return like[static_cast<std::size_t>(a)] > like[static_cast<std::size_t>(b)];
    });
  }
  for (auto i = dims; i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    strides[d] = like[d] == 0 ? 0 : next;
    if (like[d] != 0) next *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

DTensorImpl::DTensorImpl(at::Tensor local, LayoutPtr layout, at::IntArrayRef sizes, at::IntArrayRef strides)
    : c10::TensorImpl(keys_of(local), local.dtype(), local.device()),
      local_(std::move(local)),
      layout_(std::move(layout)) {
  set_sizes_and_strides(sizes, strides);
  set_storage_access_should_throw();
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                         bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(local_, layout_, sizes(), strides());
  copy->is_copied_view_ = is_copied_view_;
  copy_tensor_metadata(this, copy.get(), version, allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                         bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(local_, layout_, sizes(), strides());
  copy->is_copied_view_ = is_copied_view_;
  copy_tensor_metadata(this, copy.get(), std::move(version), allow_tensor_metadata_change);
  return copy;
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) {
  TORCH_CHECK(is_distributed_impl(*other),
              "a distributed tensor cannot become a plain one: set_data() got a tensor "
              "that is not distributed");
  const auto& from = static_cast<const DTensorImpl&>(*other);
  copy_tensor_metadata(&from, this, version_counter(), allow_tensor_metadata_change());
  local_ = from.local_;
  layout_ = from.layout_;
  is_copied_view_ = from.is_copied_view_;
}

}  // namespace cohort::dtensor
