// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives for the library's own use: through the dispatcher, as every collective on tensors, but performed on the
// calling thread. Results are plain tensors, ready to use (on the current stream, for device memory).
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <cstdint>
#include <vector>

namespace cohort::functional::blocking {

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group);
/// Along dimension 0, of contiguous tensors.
at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group);
/// Along dimension 0.
at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group);
/// Splits are rows; empty lists mean equal parts.
at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                      const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group);
at::Tensor broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group);

}  // namespace cohort::functional::blocking
