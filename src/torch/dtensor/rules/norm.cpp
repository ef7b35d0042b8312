// SPDX-License-Identifier: BSD-3-Clause
//
// Layer norm: the dimensions that are not normalized may be sharded (the batch, or the sequence: sequence parallelism).
// Weight and bias are replicated; their gradients are Partial.
#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

/// Whether the tensor has the input's leading dimensions, or is a weight or bias.
bool has_leading_dims(const TensorArgument& tensor, std::size_t dims) {
  return tensor.sizes.size() == dims;
}

/// Outside the mesh the operator runs on tensors of one element (OpCall::run_local()).
void adjust_outside(OpCall& call, std::size_t normalized) {
  if (takes_part(call)) return;
  call.argument(normalized) = std::vector<std::int64_t>(call.argument(normalized).toIntVector().size(), 1);
}

/// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (output, mean, rstd)
void run_layer_norm(OpCall& call) {
  const c10::DimVector sizes(call.tensors()[0].sizes);
  const auto leading = sizes.size() - call.argument(1).toIntVector().size();
  Strategies strategies;
  strategies.push_back(all_replicated(call, 3));
  for (std::size_t d = 0; d < leading; ++d) {
    const Shard shard(static_cast<std::int64_t>(d));
    Strategy strategy{.arguments = PlacementVector(call.tensors().size(), Replicate()),
                      .results = PlacementVector(3, shard)};
    strategy.arguments[0] = shard;
    strategies.push_back(std::move(strategy));
  }
  c10::DimVector statistics(sizes);
  std::fill(statistics.begin() + static_cast<std::ptrdiff_t>(leading), statistics.end(), 1);
  adjust_outside(call, 1);
  run_by_strategies(call, strategies, {sizes, statistics, statistics});
}

/// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
///   -> (grad_input, grad_weight, grad_bias)
void run_layer_norm_backward(OpCall& call) {
  const c10::DimVector sizes(call.tensors()[0].sizes);
  const c10::DimVector normalized(call.argument(2).toIntVector());
  const auto leading = sizes.size() - normalized.size();
  const Partial partial;
  Strategies strategies;
  strategies.push_back(all_replicated(call, 3));
  for (std::size_t d = 0; d < leading; ++d) {
    const Shard shard(static_cast<std::int64_t>(d));
    Strategy strategy{.arguments = {}, .results = {shard, partial, partial}};
    for (const auto& each : call.tensors()) {
      if (has_leading_dims(each, sizes.size())) {
        strategy.arguments.push_back(shard);
      } else {
        strategy.arguments.push_back(Replicate());
      }
    }
    strategies.push_back(std::move(strategy));
  }
  adjust_outside(call, 2);
  run_by_strategies(call, strategies, {sizes, normalized, normalized});
}

}  // namespace

void add_norm_rules(RuleTable& table) {
  table.add("aten::native_layer_norm", "norm", run_layer_norm);
  table.add("aten::native_layer_norm_backward", "norm", run_layer_norm_backward);
}

}  // namespace cohort::dtensor
