// SPDX-License-Identifier: BSD-3-Clause
//
// Embeddings. The table may be sharded by columns (the result is then sharded in its last dimension) or by rows: then
// every rank looks up the indices that fall into its rows and has zeros for the others, and the result is their sum,
// Partial. The zeros are written at once, so no mask has to be kept until the sum is made. An index that is no row of
// the whole table is left to libtorch's kernel, on every rank: it throws, or on a GPU stops with a device-side
// assertion, as for a dense table.
#include <ATen/ATen.h>

#include "torch/dtensor/redistribute_local.h"
#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

/// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
void run_embedding(OpCall& call) {
  const auto& weight = call.tensors()[0];
  const auto& indices = call.tensors()[1];
  if (call.argument(4).toBool()) call.refuse("sparse gradients of a distributed embedding are not supported");
  c10::DimVector sizes(indices.sizes);
  sizes.push_back(weight.sizes[1]);
  const auto last = static_cast<std::int64_t>(indices.sizes.size());
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d < last; ++d) {
    strategies.push_back({.arguments = {Replicate(), Shard(d)}, .results = {Shard(d)}});
  }
  strategies.push_back({.arguments = {Shard(1), Replicate()}, .results = {Shard(last)}});
  strategies.push_back({.arguments = {Shard(0), Replicate()}, .results = {Partial()}});
  strategies.push_back({.arguments = {Partial(), Replicate()}, .results = {Partial()}});
  const auto decision = choose(call, strategies, false);
  const auto& table = decision.arguments[0];
  const bool has_rows_elsewhere = std::any_of(table->placements.begin(), table->placements.end(),
                                              [](const Placement& each) { return each.is_shard(0); });
  const auto first_row = has_rows_elsewhere ? local_offsets(weight.sizes, *table)[0] : 0;
  call.localize(decision.arguments);
  if (!has_rows_elsewhere || !takes_part(call)) {
    call.run_local();
    return call.wrap_results(decision.results, SizesList{sizes});
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto rows = call.argument(0).toTensor();
  const auto count = rows.size(0);
  // Without a row, one of zeros stands in for it; an index behind the last row must not find it.
  const auto offset = count == 0 ? first_row - 1 : first_row;
  auto index = call.argument(1).toTensor() - offset;
  const auto is_row = index.ge(-offset).logical_and_(index.lt(weight.sizes[0] - offset));
  const auto is_elsewhere = index.lt(0).logical_or_(index.ge(count)).logical_and_(is_row);
  const auto known = count == 0 ? at::zeros({1, rows.size(1)}, rows.options()) : rows;
  auto result = at::embedding(known, index.masked_fill_(is_elsewhere, 0));
  result.masked_fill_(is_elsewhere.unsqueeze(-1), 0);
  call.finish({wrap(std::move(result), decision.results[0], sizes)});
}

/// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
void run_embedding_backward(OpCall& call) {
  const auto& grad = call.tensors()[0];
  const auto& indices = call.tensors()[1];
  if (call.argument(4).toBool()) call.refuse("scale_grad_by_freq needs the frequencies on all ranks");
  const c10::DimVector sizes{call.argument(2).toInt(), grad.sizes.back()};
  const auto last = static_cast<std::int64_t>(indices.sizes.size());
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d < last; ++d) {
    strategies.push_back({.arguments = {Shard(d), Shard(d)}, .results = {Partial()}});
  }
  strategies.push_back({.arguments = {Shard(last), Replicate()}, .results = {Shard(1)}});
  strategies.push_back({.arguments = {Partial(), Replicate()}, .results = {Partial()}});
  run_by_strategies(call, strategies, {sizes});
}

}  // namespace

void add_embedding_rules(RuleTable& table) {
  table.add("aten::embedding", "embedding", run_embedding);
  table.add("aten::embedding_dense_backward", "embedding", run_embedding_backward);
}

}  // namespace cohort::dtensor
