// SPDX-License-Identifier: BSD-3-Clause
//
// Products of matrices: rows, columns, the batch or the inner dimension may be sharded (rule.h has the table for mm).
#include <ATen/ATen.h>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

/// Strategies of a product of a (… m k) and b (… k n), with `batch` leading dimensions that both have.
Strategies product_strategies(std::int64_t batch) {
  const Partial partial;
  Strategies strategies;
  strategies.push_back({.arguments = {Replicate(), Replicate()}, .results = {Replicate()}});
  for (std::int64_t d = 0; d < batch; ++d) {
    strategies.push_back({.arguments = {Shard(d), Shard(d)}, .results = {Shard(d)}});
  }
  strategies.push_back({.arguments = {Shard(batch), Replicate()}, .results = {Shard(batch)}});
  strategies.push_back({.arguments = {Replicate(), Shard(batch + 1)}, .results = {Shard(batch + 1)}});
  strategies.push_back({.arguments = {Shard(batch + 1), Shard(batch)}, .results = {partial}});
  strategies.push_back({.arguments = {partial, Replicate()}, .results = {partial}});
  strategies.push_back({.arguments = {Replicate(), partial}, .results = {partial}});
  return strategies;
}

c10::DimVector product_sizes(const TensorArgument& a, const TensorArgument& b) {
  c10::DimVector sizes(a.sizes);
  sizes.back() = b.sizes.back();
  return sizes;
}

void run_product(OpCall& call) {
  const auto& a = call.tensors()[0];
  const auto& b = call.tensors()[1];
  run_by_strategies(call, product_strategies(static_cast<std::int64_t>(a.sizes.size()) - 2), {product_sizes(a, b)});
}

/// How the summand of addmm and baddbmm lies if the result lies as `result`. It may have fewer dimensions, or
/// dimensions of size 1, and is then the same for all parts.
Placement summand_for(const TensorArgument& summand, const Placement& result, at::IntArrayRef sizes) {
  if (!result.is_shard()) return Replicate();
  const auto missing = static_cast<std::int64_t>(sizes.size() - summand.sizes.size());
  const auto dim = result.dim() - missing;
  const auto size = sizes[static_cast<std::size_t>(result.dim())];
  if (dim < 0 || summand.sizes[static_cast<std::size_t>(dim)] != size) return Replicate();
  return Shard(dim);
}

/// addmm(summand, a, b, beta, alpha) and baddbmm. Where the product is Partial and the summand replicated, only the
/// first rank of the mesh dimension adds it, so that it counts once and exactly.
void run_sum_and_product(OpCall& call) {
  const auto& tensors = call.tensors();
  if (tensors.size() != 3) call.refuse("three tensors are needed");
  const auto sizes = product_sizes(tensors[1], tensors[2]);
  const Partial partial;
  Strategies strategies;
  for (const auto& product : product_strategies(static_cast<std::int64_t>(tensors[1].sizes.size()) - 2)) {
    const auto& result = product.results[0];
    strategies.push_back(
        {.arguments = {summand_for(tensors[0], result, sizes), product.arguments[0], product.arguments[1]},
         .results = {result}});
    if (result.is_partial() && product.arguments[0].is_shard()) {
      strategies.push_back({.arguments = {partial, product.arguments[0], product.arguments[1]}, .results = {result}});
    }
  }
  const auto decision = choose(call, strategies);
  bool adds_summand = true;
  if (const auto* coordinate = call.mesh().coordinate()) {
    for (std::size_t dim = 0; dim < coordinate->size(); ++dim) {
      const bool is_shared =
          decision.results[0]->placements[dim].is_partial() &&
          (decision.arguments[0] == nullptr || decision.arguments[0]->placements[dim].is_replicate());
      if (is_shared && (*coordinate)[dim] != 0) adds_summand = false;
    }
  }
  call.localize(decision.arguments);
  if (!adds_summand) {
    // Not by beta = 0: baddbmm of libtorch 1.13 then reads uninitialised memory.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call.argument(0) = at::zeros({}, call.argument(1).toTensor().options());
  }
  call.run_local();
  call.wrap_results(decision.results, SizesList{sizes});
}

void run_dot(OpCall& call) {
  const Partial partial;
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  strategies.push_back({.arguments = {Shard(0), Shard(0)}, .results = {partial}});
  strategies.push_back({.arguments = {partial, Replicate()}, .results = {partial}});
  strategies.push_back({.arguments = {Replicate(), partial}, .results = {partial}});
  run_by_strategies(call, strategies, {c10::DimVector{}});
}

void run_matrix_vector(OpCall& call) {
  const Partial partial;
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  strategies.push_back({.arguments = {Shard(0), Replicate()}, .results = {Shard(0)}});
  strategies.push_back({.arguments = {Shard(1), Shard(0)}, .results = {partial}});
  strategies.push_back({.arguments = {partial, Replicate()}, .results = {partial}});
  strategies.push_back({.arguments = {Replicate(), partial}, .results = {partial}});
  run_by_strategies(call, strategies, {c10::DimVector{call.tensors()[0].sizes[0]}});
}

}  // namespace

void add_matmul_rules(RuleTable& table) {
  table.add({"aten::mm", "aten::bmm"}, "matmul", run_product);
  table.add({"aten::addmm", "aten::baddbmm"}, "matmul", run_sum_and_product);
  table.add("aten::dot", "matmul", run_dot);
  table.add("aten::mv", "matmul", run_matrix_vector);
}

}  // namespace cohort::dtensor
