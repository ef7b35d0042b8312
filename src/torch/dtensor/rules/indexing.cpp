// SPDX-License-Identifier: BSD-3-Clause
//
// Selecting and joining along a dimension that is whole on every rank, triangles of matrices, and what leads from a
// tensor to a value of the host.
#include <ATen/ATen.h>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// All tensors are sharded alike, in any dimension but `dim`.
Strategies alike_but(const OpCall& call, std::int64_t dim, std::size_t dims) {
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(dims); ++d) {
    if (d == dim) continue;
    strategies.push_back({.arguments = PlacementVector(call.tensors().size(), Shard(d)), .results = {Shard(d)}});
  }
  return strategies;
}

void add_all_partial(const OpCall& call, Strategies& strategies) {
  strategies.push_back({.arguments = PlacementVector(call.tensors().size(), Partial()), .results = {Partial()}});
}

/// cat(tensors, dim)
void run_cat(OpCall& call) {
  c10::DimVector sizes(call.tensors()[0].sizes);
  const auto dim = existing_dim(call.argument(1).toInt(), sizes.size());
  auto& size = sizes[static_cast<std::size_t>(dim)];
  size = 0;
  for (const auto& each : call.tensors()) {
    if (each.sizes.size() != sizes.size()) call.refuse("the tensors have different numbers of dimensions");
    size += each.sizes[static_cast<std::size_t>(dim)];
  }
  auto strategies = alike_but(call, dim, sizes.size());
  add_all_partial(call, strategies);
  run_by_strategies(call, strategies, {sizes});
}

/// stack(tensors, dim)
void run_stack(OpCall& call) {
  c10::DimVector sizes(call.tensors()[0].sizes);
  const auto dims = sizes.size();
  const auto dim = wrapped_dim(call.argument(1).toInt(), dims + 1);
  sizes.insert(sizes.begin() + dim, static_cast<std::int64_t>(call.tensors().size()));
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(dims); ++d) {
    strategies.push_back(
        {.arguments = PlacementVector(call.tensors().size(), Shard(d)), .results = {Shard(d >= dim ? d + 1 : d)}});
  }
  add_all_partial(call, strategies);
  run_by_strategies(call, strategies, {sizes});
}

/// index_select(self, dim, index)
void run_index_select(OpCall& call) {
  c10::DimVector sizes(call.tensors()[0].sizes);
  const auto dim = existing_dim(call.argument(1).toInt(), sizes.size());
  sizes[static_cast<std::size_t>(dim)] = call.tensors()[1].sizes.empty() ? 1 : call.tensors()[1].sizes[0];
  auto strategies = alike_but(call, dim, sizes.size());
  for (auto& each : strategies) each.arguments[1] = Replicate();
  strategies.push_back({.arguments = {Replicate(), Shard(0)}, .results = {Shard(dim)}});
  strategies.push_back({.arguments = {Partial(), Replicate()}, .results = {Partial()}});
  run_by_strategies(call, strategies, {sizes});
}

/// gather(self, dim, index): the sizes are those of the index, which may be smaller in other dimensions too.
void run_gather(OpCall& call) {
  const auto& self = call.tensors()[0];
  const c10::DimVector sizes(call.tensors()[1].sizes);
  const auto dim = wrapped_dim(call.argument(1).toInt(), sizes.size());
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Shard shard(static_cast<std::int64_t>(d));
    if (static_cast<std::int64_t>(d) == dim) {
      strategies.push_back({.arguments = {Replicate(), shard}, .results = {shard}});
    } else if (self.sizes[d] == sizes[d]) {
      strategies.push_back({.arguments = {shard, shard}, .results = {shard}});
    }
  }
  strategies.push_back({.arguments = {Partial(), Replicate()}, .results = {Partial()}});
  run_by_strategies(call, strategies, {sizes});
}

/// scatter_add_(self, dim, index, src): what the gradient of gather() is made of.
void run_scatter_add(OpCall& call) {
  const auto& tensors = call.tensors();
  const c10::DimVector sizes(tensors[0].sizes);
  const auto dim = wrapped_dim(call.argument(1).toInt(), sizes.size());
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const bool is_whole = std::all_of(tensors.begin(), tensors.end(), [&](const TensorArgument& each) {
      return each.sizes.size() == sizes.size() && each.sizes[d] == sizes[d];
    });
    if (static_cast<std::int64_t>(d) == dim || !is_whole) continue;
    const Shard shard(static_cast<std::int64_t>(d));
    strategies.push_back({.arguments = PlacementVector(tensors.size(), shard), .results = {shard}});
  }
  run_by_strategies(call, strategies, {sizes});
}

/// index_add_(self, dim, index, source, alpha): what the gradient of index_select() is made of.
void run_index_add(OpCall& call) {
  const c10::DimVector sizes(call.tensors()[0].sizes);
  const auto dim = wrapped_dim(call.argument(1).toInt(), sizes.size());
  auto strategies = alike_but(call, dim, sizes.size());
  for (auto& each : strategies) each.arguments[1] = Replicate();
  run_by_strategies(call, strategies, {sizes});
}

/// flip(self, dims)
void run_flip(OpCall& call) {
  const c10::DimVector sizes(call.tensors()[0].sizes);
  c10::SmallVector<bool, 5> is_flipped(sizes.size(), false);
  for (const auto dim : call.argument(1).toIntVector()) {
    is_flipped[static_cast<std::size_t>(existing_dim(dim, sizes.size()))] = true;
  }
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Shard shard(static_cast<std::int64_t>(d));
    if (!is_flipped[d]) strategies.push_back({.arguments = {shard}, .results = {shard}});
  }
  add_all_partial(call, strategies);
  run_by_strategies(call, strategies, {sizes});
}

/// tril and triu: the matrices are whole, the batch may be sharded.
void run_triangle(OpCall& call) {
  const c10::DimVector sizes(call.tensors()[0].sizes);
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d + 2 < static_cast<std::int64_t>(sizes.size()); ++d) {
    strategies.push_back({.arguments = {Shard(d)}, .results = {Shard(d)}});
  }
  strategies.push_back({.arguments = {Partial()}, .results = {Partial()}});
  run_by_strategies(call, strategies, {sizes});
}

/// _local_scalar_dense(self), behind item(): needs the value on every rank.
void run_item(OpCall& call) {
  const auto layout = replicated_layout(call.mesh());
  call.localize({&layout, 1});
  if (!takes_part(call)) call.refuse("this rank is not in the mesh and has no value");
  call.run_local();
}

/// equal(self, other): parts that lie alike are compared where they are, and the answers combined.
void run_equal(OpCall& call) {
  const auto& tensors = call.tensors();
  if (tensors[0].sizes != tensors[1].sizes) return call.finish({false});
  const auto decision = choose(call, alike_but(call, -1, tensors[0].sizes.size()));
  call.localize(decision.arguments);
  if (!takes_part(call)) call.refuse("this rank is not in the mesh and has no answer");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto is_equal = at::equal(call.argument(0).toTensor(), call.argument(1).toTensor());
  auto answer = at::scalar_tensor(is_equal ? 1 : 0, call.argument(0).toTensor().options().dtype(at::kInt));
  for (std::int64_t dim = 0; dim < call.mesh().ndim(); ++dim) {
    answer = functional::on_group::all_reduce(answer, ReduceOp::Kind::min, call.mesh().group(dim));
  }
  call.finish({answer.item<int>() == 1});
}

}  // namespace

void add_indexing_rules(RuleTable& table) {
  constexpr auto family = "indexing";
  table.add("aten::cat", family, run_cat);
  table.add("aten::stack", family, run_stack);
  table.add("aten::index_select", family, run_index_select);
  table.add("aten::gather", family, run_gather);
  table.add("aten::scatter_add_", family, run_scatter_add);
  table.add("aten::index_add_", family, run_index_add);
  table.add("aten::flip", family, run_flip);
  table.add({"aten::tril", "aten::triu"}, family, run_triangle);
  table.add("aten::_local_scalar_dense", family, run_item);
  table.add("aten::equal", family, run_equal);
}

}  // namespace cohort::dtensor
