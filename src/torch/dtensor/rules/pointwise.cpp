// SPDX-License-Identifier: BSD-3-Clause
//
// Operators that work element by element, with broadcasting: any dimension of the result may be sharded, if the
// arguments that have it are sharded there as well. A Partial sum or average passes through an operator that is linear
// in it; one of another reduction passes only where the elements stay as they are.
#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

/// In which tensors an operator is linear, so that a Partial may stay one.
enum class Linear : std::uint8_t {
  nowhere,
  together,    ///< f(a + a', b + b') = f(a, b) + f(a', b'): add, sub, and all with one tensor
  separately,  ///< in each tensor while the others are fixed: mul
  in_first,    ///< div
  copy,        ///< as `together`, and for every reduction, because the elements do not change
  monotonic,   ///< as `together`, but for max and min only: keeps the order of elements, and does not add up
};

/// Whether a Partial with this reduction passes through an operator that is linear in some tensor: -max(x, y) is not
/// max(-x, -y).
bool passes(Linear linear, Placement::Reduction reduction) {
  using enum Placement::Reduction;
  if (linear == Linear::monotonic) return reduction == max || reduction == min;
  return linear == Linear::copy || is_sum(reduction);
}

bool is_linear_in_all(Linear linear) {
  return linear == Linear::together || linear == Linear::copy || linear == Linear::monotonic;
}

/// A sum of integers that were cut off is not the sum, cut off.
Linear linear_in_conversion(at::ScalarType from, at::ScalarType to) {
  if (from == to || !at::isIntegralType(to, true) || at::isIntegralType(from, true)) return Linear::copy;
  return to == at::kBool ? Linear::nowhere : Linear::monotonic;
}

bool fits_as_it_is(const OpCall& call, Linear linear) {
  const auto& layout = call.layout_pointer();
  const auto& tensors = call.tensors();
  for (const auto& each : tensors) {
    if (each.impl == nullptr) continue;
    if (!equal(each.impl->layout(), layout) || each.sizes != tensors.front().sizes) return false;
  }
  if (tensors.front().impl == nullptr) return false;
  for (const auto& placement : layout->placements) {
    if (placement.is_partial()) {
      const bool are_all_partial = tensors.size() == 1 || tensors.back().impl != nullptr;
      if (!is_linear_in_all(linear) || !passes(linear, placement.reduction()) || !are_all_partial) return false;
    }
  }
  return true;
}

void add_partial_strategies(const OpCall& call, Linear linear, Placement::Reduction reduction, Strategies& strategies) {
  if (!passes(linear, reduction)) return;
  const auto& tensors = call.tensors();
  const Partial partial(reduction);
  if (is_linear_in_all(linear)) {
    strategies.push_back({.arguments = PlacementVector(tensors.size(), partial), .results = {partial}});
    // In place, the first tensor must stay Partial (the bias of a row-parallel layer is added so): see add_once().
    if (linear == Linear::together && tensors.size() == 2 && tensors[0].is_written &&
        reduction == Placement::Reduction::sum) {
      strategies.push_back({.arguments = {partial, Replicate()}, .results = {partial}});
    }
    return;
  }
  const auto count = linear == Linear::in_first ? 1 : linear == Linear::separately ? tensors.size() : 0;
  for (std::size_t i = 0; i < count; ++i) {
    Strategy strategy{.arguments = PlacementVector(tensors.size(), Replicate()), .results = {partial}};
    strategy.arguments[i] = partial;
    // What is written has the placement of the result.
    const bool is_possible = std::all_of(tensors.begin(), tensors.end(), [&](const TensorArgument& each) {
      return !each.is_written || &each == &tensors[i];
    });
    if (is_possible) strategies.push_back(std::move(strategy));
  }
}

/// Where a replicated summand is added to a Partial, only the first rank of the mesh dimension adds it, so that it
/// counts once and exactly; the others add zero.
void add_once(OpCall& call, const Decision& decision) {
  const auto& tensors = call.tensors();
  const auto* coordinate = call.mesh().coordinate();
  if (tensors.size() != 2 || coordinate == nullptr) return;
  for (std::size_t dim = 0; dim < coordinate->size(); ++dim) {
    const bool is_replicated =
        decision.arguments[1] == nullptr || decision.arguments[1]->placements[dim].is_replicate();
    if ((*coordinate)[dim] == 0 || !is_replicated || !decision.arguments[0]->placements[dim].is_partial()) continue;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto& summand = call.argument(tensors[1].position);
    summand = at::zeros({}, summand.toTensor().options());
  }
}

/// Where a tensor has gaps or repetitions, the result has none.
c10::DimVector packed_strides(const TensorArgument& tensor, bool is_row_major) {
  const bool is_expanded = std::find(tensor.strides.begin(), tensor.strides.end(), 0) != tensor.strides.end();
  return is_row_major || is_expanded ? dense_strides(tensor.sizes) : dense_strides(tensor.sizes, tensor.strides);
}

/// `is_row_major`: the result is, whatever the strides of the tensor.
void run_pointwise(OpCall& call, Linear linear, bool is_row_major = false) {
  const auto& tensors = call.tensors();
  if (fits_as_it_is(call, linear)) {
    call.localize_as_they_are();
    call.run_local();
    const auto& first = tensors.front();
    const bool is_dense = call.info().returns_view || first.impl->is_non_overlapping_and_dense();
    if (is_dense && !is_row_major) return call.wrap_result(call.layout_pointer(), first.sizes, first.strides);
    return call.wrap_result(call.layout_pointer(), first.sizes, packed_strides(first, is_row_major));
  }
  const auto sizes = broadcast_sizes(call);
  auto strategies = broadcast_strategies(call, sizes);
  for (auto reduction : partial_reductions_of(call)) add_partial_strategies(call, linear, reduction, strategies);
  const auto decision = choose(call, strategies);
  call.localize(decision.arguments);
  if (linear == Linear::together && tensors[0].is_written) add_once(call, decision);
  call.run_local();
  call.wrap_results(decision.results, SizesList{sizes});
}

/// log_sigmoid_forward(self) -> (output, buffer) and log_sigmoid_backward(grad, self, buffer): the buffer is like self
/// on the host, and empty on a device.
void run_log_sigmoid(OpCall& call, std::size_t results) {
  const auto& tensors = call.tensors();
  const c10::DimVector sizes(tensors[0].sizes);
  Strategies strategies;
  strategies.push_back(all_replicated(call, results));
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Shard shard(static_cast<std::int64_t>(d));
    Strategy strategy{.arguments = PlacementVector(tensors.size(), shard), .results = PlacementVector(results, shard)};
    if (tensors.back().sizes != at::IntArrayRef(sizes)) strategy.arguments.back() = Replicate();
    strategies.push_back(std::move(strategy));
  }
  auto decision = choose(call, strategies);
  call.localize(decision.arguments);
  call.run_local();
  SizesList result_sizes(results, sizes);
  if (results == 2 && call.result(1).toTensor().sizes() != call.result(0).toTensor().sizes()) {
    decision.results[1] = replicated_layout(call.mesh());
    result_sizes[1] = {0};
  }
  call.wrap_results(decision.results, result_sizes);
}

void add(RuleTable& table, std::initializer_list<const char*> names, std::initializer_list<const char*> overloads,
         Linear linear) {
  for (const std::string name : names) {
    for (const std::string overload : overloads) {
      table.add("aten::" + name + overload, "pointwise", [linear](OpCall& call) { run_pointwise(call, linear); });
    }
  }
}

}  // namespace

void add_pointwise_rules(RuleTable& table) {
  const auto unary = {"", "_", ".out"};
  add(table, {"neg", "conj_physical"}, unary, Linear::together);
  add(table,
      {"abs",        "acos",       "acosh", "asin",      "asinh",       "atan",        "atanh",       "bitwise_not",
       "ceil",       "cos",        "cosh",  "digamma",   "elu",         "erf",         "erfc",        "erfinv",
       "exp",        "exp2",       "expm1", "floor",     "frac",        "gelu",        "hardsigmoid", "hardswish",
       "hardtanh",   "isfinite",   "isinf", "isnan",     "isneginf",    "isposinf",    "leaky_relu",  "lgamma",
       "log",        "log10",      "log1p", "log2",      "log_sigmoid", "logical_not", "logit",       "mish",
       "nan_to_num", "reciprocal", "relu",  "relu6",     "round",       "rsqrt",       "sgn",         "sigmoid",
       "sign",       "signbit",    "silu",  "sin",       "sinc",        "sinh",        "softplus",    "sqrt",
       "square",     "tan",        "tanh",  "threshold", "trunc",       "clamp",       "clamp_min",   "clamp_max"},
      unary, Linear::nowhere);
  add(table, {"clamp"}, {".Tensor", "_.Tensor"}, Linear::nowhere);
  add(table, {"clamp_min", "clamp_max"}, {".Tensor", "_.Tensor"}, Linear::nowhere);

  const auto binary = {".Tensor", "_.Tensor", ".out"};
  add(table, {"add", "sub"}, binary, Linear::together);
  add(table, {"add", "sub"}, {".Scalar", "_.Scalar"}, Linear::nowhere);
  add(table, {"rsub"}, {".Tensor"}, Linear::together);
  add(table, {"rsub"}, {".Scalar"}, Linear::nowhere);
  add(table, {"mul"}, binary, Linear::separately);
  add(table, {"div"}, binary, Linear::in_first);
  add(table, {"mul", "div"}, {".Scalar", "_.Scalar"}, Linear::together);
  add(table, {"div"}, {".Tensor_mode", "_.Tensor_mode", ".Scalar_mode", "_.Scalar_mode"}, Linear::nowhere);
  add(table, {"detach", "detach_", "alias", "lift_fresh", "positive", "zero_"}, {""}, Linear::copy);
  table.add("aten::copy_", "pointwise", [](OpCall& call) {
    const auto dtype = [&](std::size_t i) { return call.argument(i).toTensor().scalar_type(); };
    run_pointwise(call, linear_in_conversion(dtype(1), dtype(0)));
  });
  table.add("aten::clone", "pointwise",
            [](OpCall& call) { run_pointwise(call, Linear::copy, is_contiguous_format(call.argument(1))); });
  // _to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format)
  table.add("aten::_to_copy", "pointwise", [](OpCall& call) {
    const auto from = call.argument(0).toTensor().scalar_type();
    const auto to = call.argument(1).toOptional<at::ScalarType>().value_or(from);
    run_pointwise(call, linear_in_conversion(from, to), is_contiguous_format(call.argument(6)));
  });
  add(table, {"_conj", "_neg_view"}, {""}, Linear::together);
  add(table, {"fill_"}, {".Scalar", ".Tensor"}, Linear::nowhere);
  add(table, {"pow"},
      {".Tensor_Tensor", ".Tensor_Scalar", ".Scalar", "_.Scalar", "_.Tensor", ".Tensor_Tensor_out",
       ".Tensor_Scalar_out"},
      Linear::nowhere);
  add(table,
      {"maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "logaddexp", "logaddexp2", "logical_and", "logical_or",
       "logical_xor", "nextafter"},
      {"", "_", ".out"}, Linear::nowhere);
  add(table,
      {"eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "floor_divide", "bitwise_and", "bitwise_or",
       "bitwise_xor"},
      {".Tensor", "_.Tensor", ".Scalar", "_.Scalar", ".Tensor_out", ".Scalar_out"}, Linear::nowhere);
  add(table, {"floor_divide"}, {"", "_", ".out"}, Linear::nowhere);
  add(table, {"xlogy", "copysign"}, {".Tensor", "_.Tensor"}, Linear::nowhere);
  add(table, {"addcmul", "addcdiv"}, {"", "_", ".out"}, Linear::nowhere);
  add(table, {"lerp"}, {".Scalar", "_.Scalar", ".Tensor", "_.Tensor"}, Linear::nowhere);
  add(table, {"where"}, {".self"}, Linear::nowhere);
  add(table, {"masked_fill", "masked_fill_"}, {".Tensor"}, Linear::nowhere);
  table.add({"aten::masked_fill.Scalar", "aten::masked_fill_.Scalar"}, "pointwise", [](OpCall& call) {
    run_pointwise(call, call.argument(2).toScalar().toDouble() == 0 ? Linear::in_first : Linear::nowhere);
  });
  add(table,
      {"gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward", "elu_backward",
       "leaky_relu_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward", "softplus_backward",
       "mish_backward", "logit_backward", "native_dropout_backward"},
      {""}, Linear::nowhere);
  table.add("aten::log_sigmoid_forward", "pointwise", [](OpCall& call) { run_log_sigmoid(call, 2); });
  table.add("aten::log_sigmoid_backward", "pointwise", [](OpCall& call) { run_log_sigmoid(call, 1); });
}

}  // namespace cohort::dtensor
