// SPDX-License-Identifier: BSD-3-Clause
//
// Convolutions and pooling over a sharded batch. Weight and bias are replicated; their gradients are Partial.
#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

/// Outside the mesh one sample of zeros says what sizes the results have.
void run_one_sample(OpCall& call, std::size_t batched) {
  SizesList sizes;
  for (const auto& each : call.tensors()) {
    sizes.emplace_back(each.sizes);
    if (sizes.size() <= batched) sizes.back()[0] = std::min<std::int64_t>(sizes.back()[0], 1);
  }
  call.run_on_zeros(sizes);
}

/// Runs with the batch (dimension 0) of the first `batched` tensors sharded, or with everything replicated. Results
/// lie as `results` says where the batch is sharded. The sizes of a result are those of its local part, but for the
/// batch.
void run_batched(OpCall& call, std::size_t batched, const PlacementVector& results) {
  const auto batch = call.tensors()[0].sizes[0];
  Strategies strategies;
  strategies.push_back(all_replicated(call, results.size()));
  Strategy sharded{.arguments = PlacementVector(call.tensors().size(), Replicate()), .results = results};
  std::fill_n(sharded.arguments.begin(), batched, Shard(0));
  strategies.push_back(std::move(sharded));
  const auto decision = choose(call, strategies);
  call.localize(decision.arguments);
  takes_part(call) ? call.run_local() : run_one_sample(call, batched);
  SizesList sizes;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& local = call.result(i);
    c10::DimVector each(local.isTensor() && local.toTensor().defined() ? local.toTensor().sizes() : at::IntArrayRef());
    if (results[i].is_shard() && !each.empty()) each[0] = batch;
    sizes.push_back(std::move(each));
  }
  if (!takes_part(call)) call.empty_results();
  call.wrap_results(decision.results, sizes);
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  const Partial partial;
  const Shard batch(0);
  const auto add = [&](const char* op, std::size_t batched, PlacementVector results) {
    table.add(op, "convolution", [=](OpCall& call) { run_batched(call, batched, results); });
  };
  add("aten::convolution", 1, {batch});
  add("aten::convolution_backward", 2, {batch, partial, partial});
  add("aten::max_pool2d_with_indices", 1, {batch, batch});
  add("aten::max_pool2d_with_indices_backward", 3, {batch});
  add("aten::avg_pool2d", 1, {batch});
  add("aten::avg_pool2d_backward", 2, {batch});
  add("aten::_adaptive_avg_pool2d", 1, {batch});
  add("aten::_adaptive_avg_pool2d_backward", 2, {batch});
}

}  // namespace cohort::dtensor
