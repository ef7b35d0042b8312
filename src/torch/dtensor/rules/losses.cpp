// SPDX-License-Identifier: BSD-3-Clause
//
// Losses. The batch and, for the negative log likelihood, the classes may be sharded. With classes sharded each rank
// contributes the targets that fall into its classes; together with log_softmax (rules/softmax.cpp) this is cross
// entropy over a sharded vocabulary, in which no rank ever holds the scores of all classes. With all classes on every
// rank, libtorch's kernel computes the sums.
#include <ATen/ATen.h>

#include <algorithm>
#include <exception>

#include "torch/dtensor/redistribute_local.h"
#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"
#include "torch/dtensor/tell_peers.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// The scores, the targets (no classes) and the rest of the tensors, which are replicated.
Strategies nll_strategies(const OpCall& call, std::size_t scores, std::size_t targets, const PlacementVector& by_batch,
                          const PlacementVector& by_class) {
  Strategies strategies;
  strategies.push_back(all_replicated(call, by_batch.size()));
  Strategy batch{.arguments = PlacementVector(call.tensors().size(), Replicate()), .results = by_batch};
  batch.arguments[scores] = Shard(0);
  batch.arguments[targets] = Shard(0);
  strategies.push_back(std::move(batch));
  Strategy classes{.arguments = PlacementVector(call.tensors().size(), Replicate()), .results = by_class};
  classes.arguments[scores] = Shard(1);
  strategies.push_back(std::move(classes));
  return strategies;
}

/// Which of all classes the columns of this rank's scores are.
struct LocalClasses {
  std::int64_t first;
  std::int64_t count;
  std::int64_t total;

  /// Where a class is among the columns. Without a class, a column of zeros stands in, and a target behind the last
  /// class must not find it.
  std::int64_t offset() const { return count == 0 ? first - 1 : first; }
};

/// The targets as columns of this rank's scores, and which of them are there and count.
struct LocalTargets {
  /// 0 where they are elsewhere or do not count. What is no class at all stays none: the kernel that looks the column
  /// up throws, or on a GPU stops with a device-side assertion, as for dense scores.
  at::Tensor column;
  at::Tensor is_here;
  at::Tensor weight;  ///< of each row; 0 where the target is ignored

  LocalTargets(const at::Tensor& given, const at::Tensor& weights, std::int64_t ignored, const LocalClasses& classes,
               const at::TensorOptions& options) {
    const auto targets = given.to(at::kLong);
    const auto counts = targets.ne(ignored);
    const auto is_class = targets.ge(0).logical_and_(targets.lt(classes.total));
    column = targets - classes.offset();
    is_here = column.ge(0).logical_and_(column.lt(classes.count)).logical_and_(counts);
    column.masked_fill_(is_here.logical_not().logical_and_(is_class.logical_or_(counts.logical_not())), 0);
    weight = weights.defined() ? weights.index_select(0, targets.masked_fill(counts.logical_not(), 0)).mul_(counts)
                               : counts.to(options.dtype());
  }
};

void check_nll(const OpCall& call, const TensorArgument& scores) {
  if (scores.sizes.size() != 2) call.refuse("the rule is for scores of two dimensions, batch and classes");
}

/// A strided shard of the batch is as good as a plain one; of the classes each rank needs consecutive ones.
Decision choose_for_nll(const OpCall& call, const Strategies& strategies, std::size_t scores) {
  auto decision = choose(call, strategies);
  const auto& placements = decision.arguments[scores]->placements;
  const bool has_strided_classes = std::any_of(placements.begin(), placements.end(), [](const Placement& each) {
    return each.is_strided_shard() && each.is_shard(1);
  });
  return has_strided_classes ? choose(call, strategies, false) : decision;
}

at::Tensor tensor_or_undefined(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

struct Loss {
  at::Tensor value;
  at::Tensor total_weight;
};

/// The loss of this rank's rows and classes; `first` is the first class, of `total`.
Loss loss_in_classes(const OpCall& call, std::int64_t first, std::int64_t total, bool keeps_batch) {
  const auto& local = call.argument(0).toTensor();
  const LocalTargets targets(call.argument(1).toTensor(), tensor_or_undefined(call.argument(2)),
                             call.argument(4).toInt(), {.first = first, .count = local.size(1), .total = total},
                             local.options());
  const auto scores = local.size(1) == 0 ? at::zeros({local.size(0), 1}, local.options()) : local;
  auto value = scores.gather(1, targets.column.unsqueeze(1)).squeeze(1).neg_();
  value = at::where(targets.is_here, value * targets.weight, at::zeros({}, value.options()));
  if (keeps_batch) return {value, at::zeros({}, local.options())};
  const auto dtype = sum_dtype(local.scalar_type());
  return {value.sum(dtype), targets.weight.sum(dtype)};
}

/// The summed loss of this rank's rows, for which it has all classes.
Loss loss_in_rows(const OpCall& call) {
  auto [value, total_weight] =
      at::nll_loss_forward(call.argument(0).toTensor(), call.argument(1).toTensor(),
                           tensor_or_undefined(call.argument(2)), at::Reduction::Sum, call.argument(4).toInt());
  return {std::move(value), std::move(total_weight)};
}

/// nll_loss_forward(self, target, weight?, reduction, ignore_index) -> (output, total_weight)
void run_nll_loss(OpCall& call) {
  const auto& scores = call.tensors()[0];
  check_nll(call, scores);
  const auto reduction = call.argument(3).toInt();
  const Partial partial;
  const bool keeps_batch = reduction == at::Reduction::None;
  const auto strategies = nll_strategies(
      call, 0, 1, {keeps_batch ? Placement(Shard(0)) : Placement(partial), Replicate()}, {partial, Replicate()});
  const auto decision = choose_for_nll(call, strategies, 0);
  const auto& layout = *decision.arguments[0];
  const SizesList sizes{keeps_batch ? c10::DimVector{scores.sizes[0]} : c10::DimVector{}, c10::DimVector{}};
  const bool has_all_classes = mesh_dims_that_cut(layout, 1).empty();
  const auto batch_dims = mesh_dims_that_cut(layout, 0);
  call.localize(decision.arguments);
  if (!takes_part(call) || (has_all_classes && (keeps_batch || batch_dims.empty()))) {
    call.run_local();
    return call.wrap_results(decision.results, sizes);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto dtype = call.argument(0).toTensor().scalar_type();
  Loss sums;
  try {
    // The kernel's sum would have the dtype of the scores.
    sums = has_all_classes && sum_dtype(dtype) == dtype
               ? loss_in_rows(call)
               : loss_in_classes(call, local_offsets(scores.sizes, layout)[1], scores.sizes[1], keeps_batch);
  } catch (const std::exception& error) {
    // A target of no class is seen where it lies; the ranks with other rows go on to the sum of the weights.
    for (const auto dim : batch_dims) {
      if (!keeps_batch) tell_peers(error, call.mesh(), dim, "nll_loss");
    }
    throw;
  }
  auto& [loss, total] = sums;
  if (!keeps_batch) {
    // Every rank of a row of classes has the same targets: only the batch is summed over.
    for (const auto dim : batch_dims) {
      total = functional::on_group::all_reduce(total, ReduceOp::Kind::sum, call.mesh().group(dim));
    }
    if (reduction == at::Reduction::Mean) loss = loss / total;
  }
  call.finish(
      {wrap(loss.to(dtype), decision.results[0], sizes[0]), wrap(total.to(dtype), decision.results[1], sizes[1])});
}

/// nll_loss_backward(grad_output, self, target, weight?, reduction, ignore_index, total_weight) -> grad of self
void run_nll_loss_backward(OpCall& call) {
  const auto& scores = call.tensors()[1];
  check_nll(call, scores);
  const c10::DimVector sizes(scores.sizes);
  const auto reduction = call.argument(4).toInt();
  auto strategies = nll_strategies(call, 1, 2, {Shard(0)}, {Shard(1)});
  if (reduction == at::Reduction::None) strategies[1].arguments[0] = Shard(0);
  const auto decision = choose_for_nll(call, strategies, 1);
  const auto& layout = decision.arguments[1];
  const bool has_all_classes = mesh_dims_that_cut(*layout, 1).empty();
  call.localize(decision.arguments);
  // The total weight is that of the whole batch.
  if (has_all_classes || !takes_part(call)) {
    call.run_local();
    return call.wrap_results(decision.results, SizesList{sizes});
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto grad = call.argument(0).toTensor();
  const auto local = call.argument(1).toTensor();
  const LocalTargets targets(
      call.argument(2).toTensor(), tensor_or_undefined(call.argument(3)), call.argument(5).toInt(),
      {.first = local_offsets(sizes, *layout)[1], .count = local.size(1), .total = sizes[1]}, local.options());
  if (reduction == at::Reduction::Mean) grad = grad / call.argument(6).toTensor();
  auto result = at::zeros_like(local);
  if (local.size(1) > 0) {
    const auto at_target = at::where(targets.is_here, targets.weight * grad.neg(), at::zeros({}, local.options()));
    result.scatter_(1, targets.column.unsqueeze(1), at_target.unsqueeze(1));
  }
  call.finish({wrap(std::move(result), decision.results[0], sizes)});
}

/// mse_loss(self, target, reduction): as for means, each rank contributes its sum divided by the number of all
/// elements.
void run_mse_loss(OpCall& call) {
  const auto sizes = broadcast_sizes(call);
  const auto reduction = call.argument(2).toInt();
  auto strategies = broadcast_strategies(call, sizes);
  if (reduction == at::Reduction::None) return run_by_strategies(call, strategies, {sizes});
  for (auto& each : strategies) {
    if (each.results[0].is_shard()) each.results[0] = Partial();
  }
  const auto decision = choose(call, strategies);
  call.localize(decision.arguments);
  if (!takes_part(call)) {
    call.run_local();
    return call.wrap_results(decision.results, SizesList{c10::DimVector{}});
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto dtype = at::result_type(call.argument(0).toTensor(), call.argument(1).toTensor());
  const auto widened = [&](std::size_t i) { return call.argument(i).toTensor().to(sum_dtype(dtype)); };
  auto loss = at::mse_loss(widened(0), widened(1), at::Reduction::Sum);
  if (reduction == at::Reduction::Mean) {
    std::int64_t elements = 1;
    for (const auto size : sizes) elements *= size;
    loss.div_(elements);
  }
  call.finish({wrap(loss.to(dtype), decision.results[0], {})});
}

/// mse_loss_backward(grad_output, self, target, reduction)
void run_mse_loss_backward(OpCall& call) {
  const auto sizes = broadcast_sizes(call);
  const auto decision = choose(call, broadcast_strategies(call, sizes));
  std::int64_t elements = 1;
  for (const auto size : sizes) elements *= size;
  call.localize(decision.arguments);
  if (call.argument(3).toInt() == at::Reduction::Mean && takes_part(call)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call.argument(0) = call.argument(0).toTensor() / elements;
    call.argument(3) = static_cast<std::int64_t>(at::Reduction::Sum);
  }
  call.run_local();
  call.wrap_results(decision.results, SizesList{sizes});
}

}  // namespace

void add_loss_rules(RuleTable& table) {
  table.add("aten::nll_loss_forward", "loss", run_nll_loss);
  table.add("aten::nll_loss_backward", "loss", run_nll_loss_backward);
  table.add("aten::mse_loss", "loss", run_mse_loss);
  table.add("aten::mse_loss_backward", "loss", run_mse_loss_backward);
}

}  // namespace cohort::dtensor
