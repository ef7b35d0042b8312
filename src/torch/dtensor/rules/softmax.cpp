// SPDX-License-Identifier: BSD-3-Clause
//
// softmax and log_softmax. If the dimension itself is sharded (the classes of a vocabulary, say), every rank normalizes
// its part with the maximum and the sum over all ranks: two all-reduces of one number per row forward and one backward,
// and the rows are never gathered.
#include <ATen/ATen.h>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// Any dimension may be sharded, and all tensors lie alike.
Strategies alike_strategies(const OpCall& call) {
  Strategies strategies;
  const auto count = call.tensors().size();
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(call.tensors()[0].sizes.size()); ++d) {
    strategies.push_back({.arguments = PlacementVector(count, Shard(d)), .results = {Shard(d)}});
  }
  return strategies;
}

at::Tensor reduced(at::Tensor tensor, ReduceOp::Kind op, const DeviceMesh& mesh, const MeshDims& mesh_dims) {
  for (const auto dim : mesh_dims) tensor = functional::on_group::all_reduce(tensor, op, mesh.group(dim));
  return tensor;
}

/// The maximum along `dim`, with -inf for a rank that has no part.
at::Tensor max_along(const at::Tensor& x, std::int64_t dim) {
  if (x.size(dim) > 0) return x.amax(dim, true);
  auto sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = 1;
  return at::full(sizes, -std::numeric_limits<double>::infinity(), x.options());
}

/// Runs on the parts where every rank has the whole of the dimension that argument `dim_position` names. Otherwise
/// `compute` gets that dimension and the mesh dimensions that cut it, and returns the local result.
template <class Compute>
void run_normalizing(OpCall& call, std::size_t dim_position, Compute&& compute) {
  const c10::DimVector sizes(call.tensors()[0].sizes);
  const auto dim = wrapped_dim(call.argument(dim_position).toInt(), sizes.size());
  const auto decision = choose(call, alike_strategies(call));
  const auto mesh_dims = mesh_dims_that_cut(*decision.results[0], dim);
  call.localize(decision.arguments);
  if (mesh_dims.empty() || !takes_part(call)) {
    call.run_local();
    return call.wrap_results(decision.results, SizesList{sizes});
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  call.finish({wrap(compute(dim, mesh_dims), decision.results[0], sizes)});
}

/// _softmax(self, dim, half_to_float)
void run_softmax(OpCall& call, bool is_log) {
  run_normalizing(call, 1, [&](std::int64_t dim, const MeshDims& mesh_dims) {
    auto x = call.argument(0).toTensor();
    if (call.argument(2).toBool()) x = x.to(at::kFloat);
    const auto dtype = x.scalar_type();
    // As the kernels do, the sums are made in float.
    if (dtype == at::kHalf || dtype == at::kBFloat16) x = x.to(at::kFloat);
    const auto& mesh = call.mesh();
    x = x - reduced(max_along(x, dim), ReduceOp::Kind::max, mesh, mesh_dims);
    auto result = x.exp();
    const auto sum = reduced(result.sum(dim, true), ReduceOp::Kind::sum, mesh, mesh_dims);
    result = is_log ? x.sub_(sum.log()) : result.div_(sum);
    return result.to(dtype);
  });
}

/// _softmax_backward_data(grad_output, output, dim, input_dtype)
void run_softmax_backward(OpCall& call, bool is_log) {
  run_normalizing(call, 2, [&](std::int64_t dim, const MeshDims& mesh_dims) {
    const auto grad = call.argument(0).toTensor();
    const auto output = call.argument(1).toTensor();
    const auto weighted = is_log ? grad : grad * output;
    const auto local_sum = weighted.sum(dim, true, sum_dtype(weighted.scalar_type()));
    const auto sum = reduced(local_sum, ReduceOp::Kind::sum, call.mesh(), mesh_dims);
    const auto result = is_log ? grad - output.exp() * sum : weighted - output * sum;
    return result.to(call.argument(3).toScalarType());
  });
}

}  // namespace

void add_softmax_rules(RuleTable& table) {
  table.add("aten::_softmax", "softmax", [](OpCall& call) { run_softmax(call, false); });
  table.add("aten::_log_softmax", "softmax", [](OpCall& call) { run_softmax(call, true); });
  table.add("aten::_softmax_backward_data", "softmax", [](OpCall& call) { run_softmax_backward(call, false); });
  table.add("aten::_log_softmax_backward_data", "softmax", [](OpCall& call) { run_softmax_backward(call, true); });
}

}  // namespace cohort::dtensor
