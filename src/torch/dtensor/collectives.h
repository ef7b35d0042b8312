// SPDX-License-Identifier: BSD-3-Clause
//
// The collectives that move the parts of distributed tensors. They block, and return new tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cohort/process_group.h>
#include <cohort/torch/tensor.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace cohort::dtensor::collectives {

inline at::Tensor empty_rows(const at::Tensor& like, std::int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes.at(0) = rows;
  return at::empty(sizes, like.options());
}

inline at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group) {
  auto result = tensor.clone();
  group->all_reduce(buffer_of(result), {.op = op, .stream = current_stream(result)});
  return result;
}

inline at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  auto result = empty_rows(tensor, tensor.size(0) * group->size());
  group->all_gather(buffer_of(result), const_buffer_of(tensor), {.stream = current_stream(result)});
  return result;
}

inline at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group) {
  auto result = empty_rows(tensor, tensor.size(0) / group->size());
  group->reduce_scatter(buffer_of(result), const_buffer_of(tensor), {.op = op, .stream = current_stream(result)});
  return result;
}

inline at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                             const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group) {
  auto result = empty_rows(tensor, std::accumulate(output_splits.begin(), output_splits.end(), std::int64_t{0}));
  group->all_to_all(buffer_of(result), const_buffer_of(tensor),
                    {.output_splits = output_splits, .input_splits = input_splits, .stream = current_stream(result)});
  return result;
}

inline at::Tensor broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group) {
  auto result = tensor.clone();
  group->broadcast(buffer_of(result), {.root = root, .stream = current_stream(result)});
  return result;
}

}  // namespace cohort::dtensor::collectives
