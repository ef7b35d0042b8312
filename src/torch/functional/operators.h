// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives as operators of libtorch ("cohort::all_reduce", ...), so that whatever sees operators sees them: the
// dispatcher, recorders of graphs, TorchScript. These functions call them through the dispatcher.
//
// The group is named by its id (issuing_group.h). Results are plain tensors whose elements are there after
// wait_tensor(), unless a scope says that the operator blocks. Inputs are not modified, except by the forms that end in
// "_" and by the `out` of all_gather_into_tensor_out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "torch/compat/operator_string.h"

namespace cohort::functional {

namespace ops {

using Tensors = std::vector<at::Tensor>;

at::Tensor all_reduce(const at::Tensor& input, std::string_view reduce_op, std::string_view group);
at::Tensor all_reduce_(const at::Tensor& input, std::string_view reduce_op, std::string_view group);
Tensors all_reduce_coalesced(at::TensorList inputs, std::string_view reduce_op, std::string_view group);
Tensors all_reduce_coalesced_(at::TensorList inputs, std::string_view reduce_op, std::string_view group);
at::Tensor all_gather_into_tensor(const at::Tensor& input, std::int64_t group_size, std::string_view group);
at::Tensor all_gather_into_tensor_out(const at::Tensor& input, std::int64_t group_size, std::string_view group,
                                      const at::Tensor& out);
Tensors all_gather_into_tensor_coalesced(at::TensorList inputs, std::int64_t group_size, std::string_view group);
at::Tensor reduce_scatter_tensor(const at::Tensor& input, std::string_view reduce_op, std::int64_t group_size,
                                 std::string_view group);
Tensors reduce_scatter_tensor_coalesced(at::TensorList inputs, std::string_view reduce_op, std::int64_t group_size,
                                        std::string_view group);
at::Tensor all_to_all_single(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                             std::string_view group);
at::Tensor broadcast(const at::Tensor& input, std::int64_t root, std::string_view group);
at::Tensor broadcast_(const at::Tensor& input, std::int64_t root, std::string_view group);
at::Tensor shard_dim_alltoall(const at::Tensor& input, std::int64_t gather_dim, std::int64_t shard_dim,
                              std::int64_t group_size, std::string_view group);
/// Returns its argument.
at::Tensor wait_tensor(const at::Tensor& tensor);

}  // namespace ops
}  // namespace cohort::functional
