// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <cohort/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "torch/dtensor/autograd.h"
#include "torch/dtensor/implicit_replication.h"
#include "torch/dtensor/redistribute_local.h"
#include "torch/dtensor/rule.h"
#include "torch/dtensor/rules/common.h"
#include "torch/functional/async_tensor.h"

namespace cohort::dtensor {

namespace {

/// Whether a plain tensor may count as a replicated one.
bool is_replicable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 && find_impl(tensor) == nullptr && !tensor.requires_grad();
}

/// Puts a replicated tensor in place of each plain one that has dimensions, also in lists.
void replicate_plain(std::span<c10::IValue> arguments, const DeviceMesh& mesh) {
  LayoutPtr layout;
  const auto as_replicated = [&](const at::Tensor& tensor) {
    if (layout == nullptr) layout = replicated_layout(mesh);
    return wrap(tensor, layout, tensor.sizes(), tensor.strides());
  };
  const auto is_wanted = [](const c10::IValue& value) { return value.isTensor() && is_replicable(value.toTensor()); };
  for (auto& argument : arguments) {
    if (is_wanted(argument)) argument = as_replicated(argument.toTensor());
    if (!argument.isTensorList() && !argument.isOptionalTensorList()) continue;
    const auto items = argument.toListRef().vec();
    if (std::none_of(items.begin(), items.end(), is_wanted)) continue;
    auto list = argument.toList().copy();  // the list is the caller's, who may still use it
    for (std::size_t item = 0; item < items.size(); ++item) {
      if (is_wanted(items[item])) list.set(item, as_replicated(items[item].toTensor()));
    }
    argument = std::move(list);
  }
}

bool is_in_backward() {
  return ::torch::autograd::get_current_graph_task_exec_info() != nullptr;
}

}  // namespace

OpCall::OpCall(const c10::OperatorHandle& op, const OpInfo& info, torch::jit::Stack& stack)
    : op_(op), info_(info), stack_(stack), begin_(stack.size() - info.arguments), arguments_(info.arguments) {
  auto plain = collect();
  if (info.rule == nullptr) return;  // only to be refused, and that should not be for a plain tensor
  if (plain && replicates_plain_tensors()) {
    replicate_plain({stack_.data() + begin_, arguments_}, mesh());
    tensors_.clear();
    plain = collect();
  }
  if (plain) {
    refuse(
        fmt::format("a plain tensor of sizes [{}] is among the arguments: make it distributed with "
                    "distribute_tensor() or DTensor::from_local(), or see ImplicitReplication{}",
                    fmt::join(plain->begin(), plain->end(), ", "),
                    is_in_backward() ? "; if backward began at a part of split() or unbind() itself, begin it at "
                                       "something that was computed from the part"
                                     : ""));
  }
  for (const auto& each : tensors_) {
    if (each.impl != nullptr && each.impl->layout() != first_->layout() && !(each.impl->layout()->mesh == mesh())) {
      refuse("the tensors lie on different meshes");
    }
  }
}

std::optional<at::IntArrayRef> OpCall::collect() {
  std::optional<at::IntArrayRef> plain;
  const auto add = [&](const at::Tensor& tensor, std::size_t position, int in_list) {
    if (!tensor.defined()) return;
    const auto* impl = find_impl(tensor);
    // The gradient of a plain tensor would be a distributed one.
    const bool has_gradient = impl == nullptr && tensor.requires_grad() && at::GradMode::is_enabled();
    if (impl == nullptr && (tensor.dim() > 0 || info_.writes[position] || has_gradient)) plain = tensor.sizes();
    if (impl != nullptr && first_ == nullptr) first_ = impl;
    if (impl != nullptr && impl->requires_grad()) {
      if (at::GradMode::is_enabled()) redistribute_gradients_of(tensor);
      replace_missing_gradients_of(tensor);
    }
    tensors_.push_back({.position = position,
                        .in_list = in_list,
                        .impl = impl,
                        .sizes = tensor.sizes(),
                        .strides = tensor.strides(),
                        .is_written = info_.writes[position]});
  };
  for (std::size_t i = 0; i < arguments_; ++i) {
    const auto& value = argument(i);
    if (value.isTensor()) {
      add(value.toTensor(), i, -1);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      int index = 0;
      for (const c10::IValue& each : value.toListRef()) {
        if (each.isTensor()) add(each.toTensor(), i, index);
        ++index;
      }
    }
  }
  return plain;
}

std::string OpCall::name() const {
  const auto& name = op_.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

const DTensorImpl* OpCall::find(std::size_t position) const noexcept {
  for (const auto& each : tensors_) {
    if (each.position == position) return each.impl;
  }
  return nullptr;
}

at::Tensor OpCall::local_of(const TensorArgument& argument, const LayoutPtr& target) const {
  const auto& from = argument.impl->layout();
  if (argument.is_written && argument.impl->is_copied_view()) [[unlikely]] {
    refuse(
        "the tensor that is written in place came from a view() or reshape() that had to redistribute it, and shares "
        "no "
        "memory with its base any more; redistribute() the base before, or clone() the view");
  }
  if (equal(from, target)) return functional::plain_if_done(argument.impl->local());
  if (argument.is_written) {
    refuse(
        fmt::format("the tensor that is written in place would have to lie as {}: redistribute() it before, or use "
                    "the function that returns a new tensor",
                    to_string(target->placements)));
  }
  return redistribute_local(argument.impl->local(), argument.sizes, *from, *target, name());
}

void OpCall::localize(std::span<const LayoutPtr> targets) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& each = tensors_[i];
    if (each.impl == nullptr) continue;
    auto local = local_of(each, targets[i]);
    auto& value = argument(each.position);
    if (each.in_list < 0) {
      given_.push_back({.position = each.position, .value = std::exchange(value, std::move(local))});
      continue;
    }
    if (given_.empty() || given_.back().position != each.position) {
      // The list is the caller's, who may still use it.
      auto copy = value.isTensorList() ? c10::IValue(value.toTensorList().copy()) : c10::IValue(value.toList().copy());
      given_.push_back({.position = each.position, .value = std::exchange(value, std::move(copy))});
    }
    put(each, std::move(local));
  }
}

void OpCall::put(const TensorArgument& argument, at::Tensor tensor) {
  auto& value = this->argument(argument.position);
  const auto index = static_cast<std::size_t>(std::max(argument.in_list, 0));
  if (argument.in_list < 0) {
    value = std::move(tensor);
  } else if (value.isTensorList()) {
    value.toTensorList().set(index, std::move(tensor));
  } else {
    value.toList().set(index, std::move(tensor));
  }
}

void OpCall::localize_as_they_are() {
  c10::SmallVector<LayoutPtr, 4> targets;
  for (const auto& each : tensors_) targets.push_back(each.impl == nullptr ? nullptr : each.impl->layout());
  localize(targets);
}

void OpCall::run_local() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (mesh().coordinate() != nullptr) [[likely]]
    return op_.callBoxed(&stack_);
  const auto& same = info_.result_is_argument;
  const bool is_in_place = std::none_of(same.begin(), same.end(), [](int argument) { return argument < 0; });
  if (is_in_place || info_.rule->family == "view" || info_.rule->family == "user") {
    return finish(std::vector<c10::IValue>(info_.results, first_->local().new_empty({0})));
  }
  SizesList sizes;
  for (const auto& each : tensors_) {
    sizes.emplace_back(each.sizes);
    for (auto& size : sizes.back()) size = std::min<std::int64_t>(size, 1);
  }
  run_on_zeros(sizes);
  empty_results();
}

void OpCall::run_on_zeros(std::span<const c10::DimVector> sizes) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& each = tensors_[i];
    if (each.impl != nullptr) put(each, at::zeros(sizes[i], each.impl->local().options()));
  }
  op_.callBoxed(&stack_);
}

void OpCall::empty_results() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (auto i = stack_.size() - info_.results; i < stack_.size(); ++i) {
    auto& value = stack_[i];
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().new_empty({0});
  }
}

const c10::IValue& OpCall::given(std::size_t position) const {
  return std::find_if(given_.begin(), given_.end(), [&](const Given& each) { return each.position == position; })
      ->value;
}

at::Tensor OpCall::take_result() {
  auto result = std::move(stack_.back()).toTensor();
  stack_.pop_back();
  return result;
}

c10::List<at::Tensor> OpCall::take_list_result() {
  auto result = std::move(stack_.back()).toTensorList();
  stack_.pop_back();
  return result;
}

void OpCall::wrap_results(std::span<const LayoutPtr> layouts, std::span<const c10::DimVector> sizes) {
  const auto begin = stack_.size() - info_.results;
  for (std::size_t i = 0; i < info_.results; ++i) {
    auto& value = stack_[begin + i];
    if (info_.result_is_argument[i] >= 0) {
      const auto position = static_cast<std::size_t>(info_.result_is_argument[i]);
      for (const auto& each : given_) {
        if (each.position == position) value = each.value;
      }
    } else if (value.isTensor() && value.toTensor().defined()) {
      value = wrap(std::move(value).toTensor(), layouts[i], sizes[i]);
    }
  }
}

void OpCall::wrap_result(const LayoutPtr& layout, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (info_.result_is_argument[0] >= 0) return wrap_results({}, {});
  stack_.back() = wrap(std::move(stack_.back()).toTensor(), layout, sizes, strides);
}

void OpCall::mark_views_of_copies() {
  if (!first_->is_copied_view() || name() == "aten::detach") return;
  const auto mark = [](const at::Tensor& view) {
    static_cast<DTensorImpl*>(view.unsafeGetTensorImpl())->set_copied_view();
  };
  for (auto i = begin_; i < stack_.size(); ++i) {
    if (stack_[i].isTensor()) {
      mark(stack_[i].toTensor());
    } else {
      for (const at::Tensor& view : stack_[i].toTensorVector()) mark(view);
    }
  }
}

void OpCall::finish(std::vector<c10::IValue> results) {
  stack_.resize(begin_);
  for (auto& each : results) stack_.push_back(std::move(each));
}

std::string OpCall::described(std::string_view why) const {
  std::vector<std::string> lie;
  for (const auto& each : tensors_) {
    lie.push_back(fmt::format("{} of sizes [{}]",
                              each.impl == nullptr ? "plain" : to_string(each.impl->layout()->placements),
                              fmt::join(each.sizes.begin(), each.sizes.end(), ", ")));
  }
  return fmt::format("{}({}): {}", name(), fmt::join(lie, "; "), why);
}

void OpCall::refuse(std::string_view why) const {
  throw NotSupportedError(described(why));
}

void OpCall::refuse_sizes(std::string_view why) const {
  throw ValueError(described(why));
}

}  // namespace cohort::dtensor
