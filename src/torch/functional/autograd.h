// SPDX-License-Identifier: BSD-3-Clause
//
// Nodes of autograd's graph for collectives. A collective's gradient is a collective that is differentiable itself, so
// that second derivatives work.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace cohort::functional::differentiable {

/// Along dimension 0.
at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group);
/// The sum, along dimension 0.
at::Tensor reduce_scatter(const at::Tensor& tensor, const ProcessGroupPtr& group);
at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                      const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group);
/// Plain, with the history of a tensor in flight.
at::Tensor wait(const at::Tensor& in_flight);

/// Calls `issue` and returns its results. If autograd would have to differentiate it, backward through them throws a
/// NotSupportedError that names the function.
std::vector<at::Tensor> refusing_backward(const char* name, const std::vector<at::Tensor>& inputs,
                                          const std::function<std::vector<at::Tensor>()>& issue);

}  // namespace cohort::functional::differentiable
