// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/blocking.h"

#include "torch/functional/issuing_group.h"
#include "torch/functional/operators.h"

namespace cohort::functional::blocking {

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group) {
  const IssuingGroup scope(group, {.is_blocking = true});
  return ops::all_reduce(tensor, to_string(op), group->id());
}

at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  const IssuingGroup scope(group, {.is_blocking = true});
  return ops::all_gather_into_tensor(tensor, group->size(), group->id());
}

at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group) {
  const IssuingGroup scope(group, {.is_blocking = true});
  return ops::reduce_scatter_tensor(tensor, to_string(op), group->size(), group->id());
}

at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                      const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group) {
  const IssuingGroup scope(group, {.is_blocking = true});
  return ops::all_to_all_single(tensor, output_splits, input_splits, group->id());
}

at::Tensor broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group) {
  const IssuingGroup scope(group, {.is_blocking = true});
  return ops::broadcast(tensor, root, group->id());
}

}  // namespace cohort::functional::blocking
