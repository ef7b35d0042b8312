// SPDX-License-Identifier: BSD-3-Clause
//
// Reductions over dimensions of a tensor. If a dimension that is reduced is sharded, every rank reduces its part, and
// the result is Partial; other dimensions stay sharded.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// The dimensions that a call reduces, and the sizes that are left.
struct Reduced {
  c10::SmallVector<bool, 5> dims;
  bool keeps_dims = false;

  Reduced(std::size_t count, at::IntArrayRef given, bool keeps) : dims(count, given.empty()), keeps_dims(keeps) {
    for (const auto dim : given) {
      const auto wrapped = static_cast<std::size_t>(wrapped_dim(dim, count));
      if (count > 0) dims[wrapped] = true;
    }
  }

  c10::DimVector result_sizes(at::IntArrayRef sizes) const {
    c10::DimVector result;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (!dims[d]) result.push_back(sizes[d]);
      if (dims[d] && keeps_dims) result.push_back(1);
    }
    return result;
  }

  /// Where a dimension that is not reduced is in the result.
  std::int64_t result_dim(std::size_t dim) const {
    const auto gone = keeps_dims ? 0 : std::count(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(dim), true);
    return static_cast<std::int64_t>(dim) - gone;
  }
};

/// Without `combines`, the operator has no meaning on parts of a reduced dimension. `results`: max.dim has two.
Strategies reduction_strategies(const OpCall& call, const Reduced& reduced,
                                std::optional<Placement::Reduction> combines, bool is_linear, std::size_t results = 1) {
  const auto sizes = call.tensors()[0].sizes;
  Strategies strategies;
  strategies.push_back(all_replicated(call, results));
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Shard shard(static_cast<std::int64_t>(d));
    if (!reduced.dims[d]) {
      strategies.push_back({.arguments = {shard}, .results = PlacementVector(results, Shard(reduced.result_dim(d)))});
    } else if (combines && (is_linear || !may_leave_ranks_empty(call.tensors()[0], static_cast<std::int64_t>(d)))) {
      strategies.push_back({.arguments = {shard}, .results = PlacementVector(results, Partial(*combines))});
    }
  }
  for (const auto reduction : partial_reductions_of(call)) {
    const bool passes = is_linear ? is_sum(reduction) : combines == reduction;
    if (passes) {
      strategies.push_back(
          {.arguments = {Partial(reduction)}, .results = PlacementVector(results, Partial(reduction))});
    }
  }
  return strategies;
}

/// The dimensions in argument 1, which may be missing, a number or a list; then keepdim.
Reduced reduced_by(const OpCall& call, bool has_dims) {
  const auto count = call.tensors()[0].sizes.size();
  if (!has_dims) return {count, {}, false};
  const auto& dims = call.argument(1);
  const bool keeps = call.argument(2).toBool();
  if (dims.isNone()) return {count, {}, keeps};
  if (dims.isInt()) return {count, {dims.toInt()}, keeps};
  return {count, dims.toIntVector(), keeps};
}

void run_reduction(OpCall& call, bool has_dims, std::optional<Placement::Reduction> combines, bool is_linear,
                   std::size_t results = 1) {
  const auto reduced = reduced_by(call, has_dims);
  const auto sizes = reduced.result_sizes(call.tensors()[0].sizes);
  run_by_strategies(call, reduction_strategies(call, reduced, combines, is_linear, results), SizesList(results, sizes));
}

/// A mean of parts of different sizes is not the mean of their means: each rank contributes its sum, divided by the
/// number of all elements.
void run_mean(OpCall& call, bool has_dims) {
  const auto reduced = reduced_by(call, has_dims);
  const auto& tensor = call.tensors()[0];
  const auto sizes = reduced.result_sizes(tensor.sizes);
  const auto decision = choose(call, reduction_strategies(call, reduced, Placement::Reduction::sum, true));
  const auto& from = decision.arguments[0]->placements;
  const bool is_split = std::any_of(from.begin(), from.end(), [&](const Placement& each) {
    return each.is_shard() && reduced.dims[static_cast<std::size_t>(each.dim())];
  });
  call.localize(decision.arguments);
  if (!is_split || !takes_part(call)) {
    call.run_local();
    return call.wrap_results(decision.results, SizesList{sizes});
  }
  std::int64_t elements = 1;
  c10::DimVector dims;
  for (std::size_t d = 0; d < reduced.dims.size(); ++d) {
    if (!reduced.dims[d]) continue;
    elements *= tensor.sizes[d];
    dims.push_back(static_cast<std::int64_t>(d));
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto local = call.argument(0).toTensor();
  const auto dtype = call.argument(has_dims ? 3 : 1).toOptional<at::ScalarType>().value_or(local.scalar_type());
  const auto sum = at::sum(local, dims, reduced.keeps_dims, sum_dtype(dtype)).div_(elements);
  call.finish({wrap(sum.to(dtype), decision.results[0], sizes)});
}

/// linalg_vector_norm(self, ord, dim, keepdim, dtype) and norm.ScalarOpt_dim(self, p, dim, keepdim): the norm of the
/// ranks' norms. Sharded reduced dimensions cost one all-reduce of the result.
void run_norm(OpCall& call, bool has_dims) {
  const auto count = call.tensors()[0].sizes.size();
  const auto& order = call.argument(1);
  const double p = order.isNone() ? 2 : order.toScalar().toDouble();
  const auto given =
      has_dims && !call.argument(2).isNone() ? call.argument(2).toIntVector() : std::vector<std::int64_t>{};
  const Reduced reduced(count, given, has_dims && call.argument(3).toBool());
  const bool is_extreme = std::isinf(p);
  const auto combines = !is_extreme ? ReduceOp::Kind::sum : p > 0 ? ReduceOp::Kind::max : ReduceOp::Kind::min;
  // Only norms of an order from 0 up have a value for no elements. It does not matter which Partial stands for the
  // sharded dimensions: it is reduced here.
  auto strategies = reduction_strategies(call, reduced, Placement::Reduction::sum, p >= 0 && !is_extreme);
  // A sum of summands does not have the sum of their norms.
  strategies.erase(std::remove_if(strategies.begin(), strategies.end(),
                                  [](const Strategy& each) { return each.arguments[0].is_partial(); }),
                   strategies.end());
  const auto decision = choose(call, strategies);
  auto placements = decision.results[0]->placements;
  const bool is_combined = takes_part(call) && std::any_of(placements.begin(), placements.end(),
                                                           [](const Placement& each) { return each.is_partial(); });
  call.localize(decision.arguments);
  // In half precision the powers of norms may be too large.
  const auto dtype = call.argument(0).toTensor().scalar_type();
  const bool has_dtype = call.arguments() > 4 && !call.argument(4).isNone();
  const bool is_widened =
      is_combined && sum_dtype(dtype) != dtype && !(has_dtype && call.argument(4).toScalarType() != dtype);
  if (is_widened) {
    call.argument(0) = call.argument(0).toTensor().to(sum_dtype(dtype));
    if (has_dtype) call.argument(4) = c10::IValue();
  }
  call.run_local();
  auto result = call.take_result();
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (is_combined) {
      const bool is_power = !is_extreme && p != 0;  // the norm of order 0 counts elements
      if (is_power) result = result.pow(p);
      for (std::size_t dim = 0; dim < placements.size(); ++dim) {
        if (!placements[dim].is_partial()) continue;
        result = functional::on_group::all_reduce(result, combines, call.mesh().group(static_cast<std::int64_t>(dim)));
        placements[dim] = Replicate();
      }
      if (is_power) result = result.pow(1 / p);
      if (is_widened) result = result.to(dtype);
    }
  }
  const auto layout = std::make_shared<const Layout>(Layout{.mesh = call.mesh(), .placements = std::move(placements)});
  call.finish({wrap(std::move(result), layout, reduced.result_sizes(call.tensors()[0].sizes))});
}

/// Scans along one dimension (argument 1) have no rule for parts of it.
void run_along(OpCall& call) {
  const auto sizes = call.tensors()[0].sizes;
  const auto dim = wrapped_dim(call.argument(1).toInt(), sizes.size());
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
    if (d != dim) strategies.push_back({.arguments = {Shard(d)}, .results = {Shard(d)}});
  }
  strategies.push_back({.arguments = {Partial()}, .results = {Partial()}});
  run_by_strategies(call, strategies, {c10::DimVector(sizes)});
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  using enum Placement::Reduction;
  const auto add = [&](std::initializer_list<const char*> ops, bool has_dims,
                       std::optional<Placement::Reduction> combines, bool is_linear, std::size_t results = 1) {
    table.add(ops, "reduction", [=](OpCall& call) { run_reduction(call, has_dims, combines, is_linear, results); });
  };
  add({"aten::sum"}, false, sum, true);
  add({"aten::sum.dim_IntList"}, true, sum, true);
  add({"aten::max"}, false, max, false);
  add({"aten::min"}, false, min, false);
  add({"aten::prod"}, false, product, false);
  add({"aten::prod.dim_int"}, true, product, false);
  add({"aten::amax"}, true, max, false);
  add({"aten::amin"}, true, min, false);
  add({"aten::any", "aten::all"}, false, std::nullopt, false);
  add({"aten::any.dim", "aten::all.dim", "aten::argmax", "aten::argmin", "aten::logsumexp"}, true, std::nullopt, false);
  add({"aten::max.dim", "aten::min.dim"}, true, std::nullopt, false, 2);
  table.add("aten::mean", "reduction", [](OpCall& call) { run_mean(call, false); });
  table.add("aten::mean.dim", "reduction", [](OpCall& call) { run_mean(call, true); });
  table.add({"aten::linalg_vector_norm", "aten::norm.ScalarOpt_dim"}, "reduction",
            [](OpCall& call) { run_norm(call, true); });
  table.add("aten::norm.Scalar", "reduction", [](OpCall& call) { run_norm(call, false); });
  table.add({"aten::cumsum"}, "reduction", run_along);
}

}  // namespace cohort::dtensor
