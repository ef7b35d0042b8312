// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstdint>
#include <vector>

#include "torch/functional/kernels.h"
#include "torch/functional/operators.h"
#include "torch/functional/shapes.h"

namespace cohort::functional::shape_only {

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor empty(const Sizes& sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options());
}

at::Tensor all_reduce(const at::Tensor& input, OperatorString /*reduce_op*/, OperatorString /*group*/) {
  return at::empty_like(input);
}

at::Tensor all_reduce_(const at::Tensor& input, OperatorString /*reduce_op*/, OperatorString /*group*/) {
  return input;
}

Tensors all_reduce_coalesced(at::TensorList inputs, OperatorString /*reduce_op*/, OperatorString /*group*/) {
  Tensors outputs;
  for (const auto& input : inputs) outputs.push_back(at::empty_like(input));
  return outputs;
}

Tensors all_reduce_coalesced_(at::TensorList inputs, OperatorString /*reduce_op*/, OperatorString /*group*/) {
  return inputs.vec();
}

at::Tensor all_gather_into_tensor(const at::Tensor& input, std::int64_t group_size, OperatorString /*group*/) {
  check_contiguous(input, "all_gather_into_tensor");
  return empty(gathered_sizes(input, group_size), input);
}

at::Tensor all_gather_into_tensor_out(const at::Tensor& input, std::int64_t group_size, OperatorString /*group*/,
                                      const at::Tensor& out) {
  check_contiguous(input, "all_gather_into_tensor_out");
  check_gather_output(out, input, group_size);
  return out;
}

Tensors all_gather_into_tensor_coalesced(at::TensorList inputs, std::int64_t group_size, OperatorString /*group*/) {
  Tensors outputs;
  for (const auto& input : inputs) {
    check_contiguous(input, "all_gather_into_tensor_coalesced");
    outputs.push_back(empty(gathered_sizes(input, group_size), input));
  }
  return outputs;
}

at::Tensor reduce_scatter_tensor(const at::Tensor& input, OperatorString /*reduce_op*/, std::int64_t group_size,
                                 OperatorString /*group*/) {
  return empty(scattered_sizes(input, 0, group_size, "reduce_scatter_tensor"), input);
}

Tensors reduce_scatter_tensor_coalesced(at::TensorList inputs, OperatorString /*reduce_op*/, std::int64_t group_size,
                                        OperatorString /*group*/) {
  Tensors outputs;
  for (const auto& input : inputs) {
    outputs.push_back(empty(scattered_sizes(input, 0, group_size, "reduce_scatter_tensor_coalesced"), input));
  }
  return outputs;
}

at::Tensor all_to_all_single(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                             OperatorString /*group*/) {
  return empty(exchanged_sizes(input, output_splits, input_splits), input);
}

at::Tensor broadcast(const at::Tensor& input, std::int64_t /*root*/, OperatorString /*group*/) {
  return at::empty_like(input);
}

at::Tensor broadcast_(const at::Tensor& input, std::int64_t /*root*/, OperatorString /*group*/) {
  return input;
}

at::Tensor shard_dim_alltoall(const at::Tensor& input, std::int64_t gather_dim, std::int64_t shard_dim,
                              std::int64_t group_size, OperatorString /*group*/) {
  const auto gathered = wrap_dim(input, gather_dim, "shard_dim_alltoall");
  const auto sharded = wrap_dim(input, shard_dim, "shard_dim_alltoall");
  return empty(resharded_sizes(input, gathered, sharded, group_size), input);
}

at::Tensor wait_tensor(const at::Tensor& tensor) {
  return tensor;
}

}  // namespace
}  // namespace cohort::functional::shape_only

void cohort::functional::add_shape_only_kernels(torch::Library& library) {
  library.impl("all_reduce", TORCH_FN(shape_only::all_reduce));
  library.impl("all_reduce_", TORCH_FN(shape_only::all_reduce_));
  library.impl("all_reduce_coalesced", TORCH_FN(shape_only::all_reduce_coalesced));
  library.impl("all_reduce_coalesced_", TORCH_FN(shape_only::all_reduce_coalesced_));
  library.impl("all_gather_into_tensor", TORCH_FN(shape_only::all_gather_into_tensor));
  library.impl("all_gather_into_tensor_out", TORCH_FN(shape_only::all_gather_into_tensor_out));
  library.impl("all_gather_into_tensor_coalesced", TORCH_FN(shape_only::all_gather_into_tensor_coalesced));
  library.impl("reduce_scatter_tensor", TORCH_FN(shape_only::reduce_scatter_tensor));
  library.impl("reduce_scatter_tensor_coalesced", TORCH_FN(shape_only::reduce_scatter_tensor_coalesced));
  library.impl("all_to_all_single", TORCH_FN(shape_only::all_to_all_single));
  library.impl("broadcast", TORCH_FN(shape_only::broadcast));
  library.impl("broadcast_", TORCH_FN(shape_only::broadcast_));
  library.impl("shard_dim_alltoall", TORCH_FN(shape_only::shard_dim_alltoall));
  library.impl("wait_tensor", TORCH_FN(shape_only::wait_tensor));
}
