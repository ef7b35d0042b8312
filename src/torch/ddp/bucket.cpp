// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/bucket.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <cohort/torch/tensor.h>

#include <memory>
#include <utility>

namespace cohort::ddp {

at::Tensor allocate_flat(ProcessGroup& group, std::int64_t elements, const at::TensorOptions& options,
                         bool may_use_group_memory) {
  return may_use_group_memory ? empty_in_group(group, {elements}, options) : at::empty({elements}, options);
}

at::Tensor view_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (like.is_non_overlapping_and_dense()) return flat.as_strided(like.sizes(), like.strides(), offset);
  return flat.narrow(0, offset, like.numel()).view(like.sizes());
}

Bucket make_dense_bucket(ProcessGroup& group, std::vector<std::size_t> indices, std::span<const at::Tensor> parameters,
                         std::size_t limit, bool may_use_group_memory) {
  Bucket bucket{.parameters = std::move(indices), .limit = limit};
  std::int64_t elements = 0;
  for (const auto parameter : bucket.parameters) elements += parameters[parameter].numel();
  const auto& first = parameters[bucket.parameters.front()];
  bucket.flat = allocate_flat(group, elements, at::TensorOptions(first.device()).dtype(first.scalar_type()),
                              may_use_group_memory);
  std::int64_t offset = 0;
  for (const auto parameter : bucket.parameters) {
    bucket.views.push_back(view_like(bucket.flat, offset, parameters[parameter]));
    offset += parameters[parameter].numel();
  }
  return bucket;
}

}  // namespace cohort::ddp
