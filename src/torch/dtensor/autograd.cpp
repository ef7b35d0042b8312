// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/autograd.h"

#include <ATen/ATen.h>
#include <cohort/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "torch/dispatch/step_observer.h"
#include "torch/dtensor/impl.h"
#include "torch/dtensor/redistribute_local.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A layout in the context of an autograd function.
struct LayoutHolder final : torch::CustomClassHolder {
  explicit LayoutHolder(LayoutPtr held) : layout(std::move(held)) {}
  LayoutPtr layout;
};

void keep(AutogradContext& context, const char* name, const LayoutPtr& layout) {
  context.saved_data[name] = c10::IValue::make_capsule(c10::make_intrusive<LayoutHolder>(layout));
}

LayoutPtr kept(AutogradContext& context, const char* name) {
  return static_cast<LayoutHolder*>(context.saved_data[name].toCapsule().get())->layout;
}

/// The part as a tensor of its own, which shares memory with it and has its version counter, but no history.
at::Tensor alias_of(const at::Tensor& tensor, const c10::VariableVersion& version) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto alias = at::alias(tensor);
  if (!alias.is_inference()) alias.unsafeGetTensorImpl()->set_version_counter(version);
  return alias;
}

/// Where a gradient goes on its way to a tensor that lies as `layout`. Every summand of a Partial has the gradient of
/// the sum, so there it is replicated; a distributed tensor that is that Partial already may remain it.
LayoutPtr gradient_target(const LayoutPtr& layout, const Layout& gradient, bool may_stay_partial) {
  auto placements = layout->placements;
  bool is_changed = false;
  for (std::size_t dim = 0; dim < placements.size(); ++dim) {
    if (!placements[dim].is_partial()) continue;
    if (may_stay_partial && placements[dim] == gradient.placements[dim]) continue;
    placements[dim] = Replicate();
    is_changed = true;
  }
  if (!is_changed) return layout;
  return std::make_shared<const Layout>(Layout{.mesh = layout->mesh, .placements = std::move(placements)});
}

const DTensorImpl& distributed_gradient(const at::Tensor& gradient, const char* of) {
  const auto* impl = find_impl(gradient);
  if (impl == nullptr) {
    throw TypeError(
        fmt::format("{}: the gradient is not a distributed tensor; a hook or a function of your own may have "
                    "returned a plain one",
                    of));
  }
  return *impl;
}

at::Tensor redistribute_gradient(const at::Tensor& gradient, const LayoutPtr& layout, const char* of,
                                 bool may_stay_partial, const RedistributeOptions& options = {}) {
  const auto& impl = distributed_gradient(gradient, of);
  return redistribute(gradient, gradient_target(layout, *impl.layout(), may_stay_partial), options);
}

struct FromLocal : torch::autograd::Function<FromLocal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, const LayoutPtr& layout,
                            const c10::DimVector& sizes) {
    keep(*context, "layout", layout);
    const auto& version = local.unsafeGetTensorImpl()->version_counter();
    auto result = wrap(alias_of(local, version), layout, sizes);
    if (!local.is_inference()) result.unsafeGetTensorImpl()->set_version_counter(version);
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(3);
    // Autograd does not know that the local tensors of the ranks are summands of one: each gets the whole gradient.
    const auto gradient = redistribute_gradient(gradients[0], kept(*context, "layout"), "from_local", false);
    return {to_local(gradient, find_impl(gradient)->layout()), at::Tensor(), at::Tensor()};
  }
};

struct ToLocal : torch::autograd::Function<ToLocal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const LayoutPtr& gradient) {
    keep(*context, "gradient", gradient);
    context->saved_data["sizes"] = tensor.sizes().vec();
    return alias_of(find_impl(tensor)->local(), tensor.unsafeGetTensorImpl()->version_counter());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(2);
    return {from_local(gradients[0], kept(*context, "gradient"), context->saved_data["sizes"].toIntVector()),
            at::Tensor()};
  }
};

at::Tensor redistributed(const at::Tensor& tensor, const LayoutPtr& target, const RedistributeOptions& options) {
  const auto& impl = *find_impl(tensor);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto local = impl.local();
  if (options.forward_dtype) local = local.to(*options.forward_dtype);
  if (equal(impl.layout(), target)) return wrap(at::alias(local), impl.layout(), tensor.sizes(), tensor.strides());
  const auto completion = options.async_op ? functional::Completion::async : functional::Completion::blocking;
  return wrap(redistribute_local(local, tensor.sizes(), *impl.layout(), *target, {}, completion), target,
              tensor.sizes());
}

struct RedistributeFunction : torch::autograd::Function<RedistributeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const LayoutPtr& target,
                            const RedistributeOptions& options) {
    keep(*context, "from", find_impl(tensor)->layout());
    context->saved_data["dtype"] = tensor.scalar_type();
    context->saved_data["async_op"] = options.async_op;
    context->saved_data["backward_dtype"] =
        options.backward_dtype.value_or(options.forward_dtype ? *options.forward_dtype : tensor.scalar_type());
    return redistributed(tensor, target, options);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(3);
    auto gradient = gradients[0].to(context->saved_data["backward_dtype"].toScalarType());
    gradient = redistribute_gradient(gradient, kept(*context, "from"), "redistribute", true,
                                     {.async_op = context->saved_data["async_op"].toBool()});
    return {gradient.to(context->saved_data["dtype"].toScalarType()), at::Tensor(), at::Tensor()};
  }
};

/// Runs before the backward of a split() or unbind(), on the gradients of its parts.
class ReplaceMissingGradients final : public torch::autograd::FunctionPreHook {
 public:
  /// The node owns the hook.
  ReplaceMissingGradients(const torch::autograd::Node& node, const DeviceMesh& mesh)
      : node_(node), zeros_(replicated_layout(mesh)) {}

  variable_list operator()(const variable_list& gradients) override {
    auto replaced = gradients;
    const bool is_needed =
        std::any_of(gradients.begin(), gradients.end(), [](const at::Tensor& each) { return each.defined(); });
    for (std::size_t i = 0; is_needed && i < replaced.size(); ++i) {
      if (replaced[i].defined()) continue;
      const auto zeros = node_.input_metadata(i).zeros_like();
      replaced[i] = wrap(zeros, zeros_, zeros.sizes());
    }
    return replaced;
  }

 private:
  const torch::autograd::Node& node_;
  LayoutPtr zeros_;
};

/// The function that has made the tensor. Null for a leaf.
torch::autograd::Node* maker_of(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn_.get();
}

CallConstant constant(std::string name, std::string text) {
  return {.name = std::move(name), .text = std::move(text)};
}

CallConstant constant(std::string name, const LayoutPtr& layout) {
  return constant(std::move(name), to_string(layout->placements));
}

}  // namespace

void redistribute_gradients_of(const at::Tensor& tensor) {
  const auto& impl = *find_impl(tensor);
  if (impl.has_gradient_hook() || !tensor.requires_grad() || !tensor.is_leaf()) return;
  impl.set_gradient_hook();
  tensor.register_hook([layout = impl.layout()](const at::Tensor& gradient) -> at::Tensor {
    const auto* distributed = find_impl(gradient);
    if (distributed == nullptr) return gradient;
    const auto target = gradient_target(layout, *distributed->layout(), true);
    return equal(distributed->layout(), target) ? gradient : redistribute(gradient, target, {});
  });
}

void replace_missing_gradients_of(const at::Tensor& tensor) {
  auto* const node = maker_of(tensor);
  if (node == nullptr || node->num_inputs() < 2) return;
  const auto is_there = [](const auto& hook) { return dynamic_cast<ReplaceMissingGradients*>(hook.get()) != nullptr; };
  const auto& hooks = node->pre_hooks();
  if (std::any_of(hooks.begin(), hooks.end(), is_there)) return;
  const auto name = node->name();
  if (!name.starts_with("Split") && !name.starts_with("Unbind")) return;
  node->add_pre_hook(std::make_unique<ReplaceMissingGradients>(*node, find_impl(tensor)->layout()->mesh));
}

at::Tensor from_local(const at::Tensor& local, const LayoutPtr& layout, at::IntArrayRef sizes) {
  const ObservedCall call("from_local", local, [&] {
    return std::vector{constant("placements", layout), constant("sizes", fmt::format("[{}]", fmt::join(sizes, ", ")))};
  });
  return FromLocal::apply(local, layout, c10::DimVector(sizes));
}

at::Tensor to_local(const at::Tensor& tensor, const LayoutPtr& gradient) {
  const auto& impl = *find_impl(tensor);
  const ObservedCall call("to_local", tensor, [&] { return std::vector{constant("placements", impl.layout())}; });
  replace_missing_gradients_of(tensor);
  if (!at::GradMode::is_enabled()) return impl.local();
  redistribute_gradients_of(tensor);
  return ToLocal::apply(tensor, gradient);
}

at::Tensor redistribute(const at::Tensor& tensor, const LayoutPtr& target, const RedistributeOptions& options) {
  const ObservedCall call("redistribute", tensor, [&] {
    return std::vector{constant("from", find_impl(tensor)->layout()), constant("to", target)};
  });
  replace_missing_gradients_of(tensor);
  return RedistributeFunction::apply(tensor, target, options);
}

}  // namespace cohort::dtensor
