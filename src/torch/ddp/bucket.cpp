// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/bucket.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <cohort/torch/tensor.h>

#include <memory>
#include <utility>

namespace cohort::ddp {

at::Tensor allocate_flat(ProcessGroup& group, std::int64_t elements, const at::TensorOptions& options,
                         bool may_be_of_group) {
  const auto device = device_from(options.device());
  if (may_be_of_group && elements > 0 && group.capabilities(device).group_memory) {
    const auto bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
    auto memory = std::make_shared<GroupMemory>(group.allocate(bytes));
    return at::from_blob(
        memory->data(), {elements}, [memory](void* /*data*/) {}, options);
  }
  return at::empty({elements}, options);
}

at::Tensor view_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (like.is_non_overlapping_and_dense()) return flat.as_strided(like.sizes(), like.strides(), offset);
  return flat.narrow(0, offset, like.numel()).view(like.sizes());
}

Bucket make_dense_bucket(ProcessGroup& group, std::vector<std::size_t> indices, std::span<const at::Tensor> parameters,
                         std::size_t limit, bool may_be_of_group) {
  Bucket bucket{.parameters = std::move(indices), .limit = limit};
  std::int64_t elements = 0;
  for (const auto parameter : bucket.parameters) {
    bucket.offsets.push_back(elements);
    elements += parameters[parameter].numel();
  }
  const auto& first = parameters[bucket.parameters.front()];
  bucket.flat =
      allocate_flat(group, elements, at::TensorOptions(first.device()).dtype(first.scalar_type()), may_be_of_group);
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    bucket.views.push_back(view_like(bucket.flat, bucket.offsets[slot], parameters[bucket.parameters[slot]]));
  }
  return bucket;
}

}  // namespace cohort::ddp
