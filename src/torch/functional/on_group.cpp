// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/on_group.h"

#include "torch/functional/async_tensor.h"
#include "torch/functional/issuing_group.h"
#include "torch/functional/operators.h"

namespace cohort::functional::on_group {

namespace {

/// The result of `call()`, which calls one operator with the group's id.
template <class Call>
at::Tensor issue(const ProcessGroupPtr& group, Completion completion, const Call& call) {
  const bool is_blocking = completion == Completion::blocking;
  const IssuingGroup scope(group, {.is_blocking = is_blocking});
  auto result = call();
  return is_blocking ? result : as_async(result, ResultMemory::fresh);
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group,
                      Completion completion) {
  return issue(group, completion, [&] { return ops::all_reduce(tensor, to_string(op), group->id()); });
}

at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group, Completion completion) {
  return issue(group, completion, [&] { return ops::all_gather_into_tensor(tensor, group->size(), group->id()); });
}

at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp::Kind op, const ProcessGroupPtr& group,
                          Completion completion) {
  return issue(group, completion,
               [&] { return ops::reduce_scatter_tensor(tensor, to_string(op), group->size(), group->id()); });
}

at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                      const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group,
                      Completion completion) {
  return issue(group, completion,
               [&] { return ops::all_to_all_single(tensor, output_splits, input_splits, group->id()); });
}

at::Tensor broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group, Completion completion) {
  return issue(group, completion, [&] { return ops::broadcast(tensor, root, group->id()); });
}

}  // namespace cohort::functional::on_group
