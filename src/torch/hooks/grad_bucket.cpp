// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/torch/comm_hook.h>

#include <utility>

namespace cohort {

void GradBucket::set_buffer(at::Tensor buffer) {
  const bool is_like_before = buffer_.layout() == at::kStrided && buffer.layout() == at::kStrided &&
                              buffer.numel() == buffer_.numel() && buffer.is_contiguous();
  if (is_like_before) {
    const auto flat = buffer.view(-1);
    for (auto& gradient : gradients_) {
      if (!gradient.is_alias_of(buffer_)) continue;
      const auto offset = gradient.storage_offset() - buffer_.storage_offset();
      gradient = flat.as_strided(gradient.sizes(), gradient.strides(), flat.storage_offset() + offset);
    }
  }
  buffer_ = std::move(buffer);
}

}  // namespace cohort
