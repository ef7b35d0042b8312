// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives for the library's own use, on a group that the caller has: through the dispatcher, as every collective on
// tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <cstdint>
#include <vector>

namespace cohort::functional {

enum class Completion : std::uint8_t {
  blocking,  ///< performed on the calling thread; the result is plain and there (on the current stream of a device)
  async,     ///< the result is a tensor in flight (async_tensor.h)
};

namespace on_group {

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group,
                      Completion completion = Completion::blocking);
/// Along dimension 0, of contiguous tensors.
at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group,
                      Completion completion = Completion::blocking);
/// Along dimension 0.
at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group,
                          Completion completion = Completion::blocking);
/// Splits are rows; empty lists mean equal parts.
at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                      const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group,
                      Completion completion = Completion::blocking);
at::Tensor broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group,
                     Completion completion = Completion::blocking);

}  // namespace on_group

}  // namespace cohort::functional
