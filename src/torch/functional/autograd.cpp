// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/autograd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/functional.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "torch/functional/async_tensor.h"
#include "torch/functional/issuing_group.h"
#include "torch/functional/operators.h"

namespace cohort::functional::differentiable {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

/// Holds the group in the graph's node.
struct HeldGroup : torch::CustomClassHolder {
  explicit HeldGroup(ProcessGroupPtr given) : group(std::move(given)) {}
  ProcessGroupPtr group;
};

void hold(AutogradContext* context, const ProcessGroupPtr& group) {
  context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
}

ProcessGroupPtr held_group(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<HeldGroup>(context->saved_data["group"].toCapsule())->group;
}

struct AllGather : Function<AllGather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const ProcessGroupPtr& group) {
    hold(context, group);
    context->saved_data["sizes"] = tensor.sizes().vec();
    const IssuingGroup scope(group);
    return as_async(ops::all_gather_into_tensor(tensor, group->size(), group->id()), ResultMemory::fresh);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    const auto mine = wait_tensor(reduce_scatter(gradients[0], held_group(context)));
    return {mine.reshape(context->saved_data["sizes"].toIntVector()), {}};  // a scalar's gradient has one row
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const ProcessGroupPtr& group) {
    hold(context, group);
    const IssuingGroup scope(group);
    return as_async(ops::reduce_scatter_tensor(tensor, "sum", group->size(), group->id()), ResultMemory::fresh);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    return {wait_tensor(all_gather(gradients[0].contiguous(), held_group(context))), {}};
  }
};

struct AllToAll : Function<AllToAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const std::vector<std::int64_t>& output_splits,
                            const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group) {
    hold(context, group);
    context->saved_data["output_splits"] = output_splits;
    context->saved_data["input_splits"] = input_splits;
    const IssuingGroup scope(group);
    return as_async(ops::all_to_all_single(tensor, output_splits, input_splits, group->id()), ResultMemory::fresh);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    const auto received = context->saved_data["output_splits"].toIntVector();
    const auto sent = context->saved_data["input_splits"].toIntVector();
    return {wait_tensor(all_to_all(gradients[0].contiguous(), sent, received, held_group(context))), {}, {}, {}};
  }
};

struct Wait : Function<Wait> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& in_flight) {
    return find_async(in_flight)->wait().detach();
  }
  static tensor_list backward(AutogradContext* /*context*/, const tensor_list& gradients) { return {gradients[0]}; }
};

struct Refusal : Function<Refusal> {
  static tensor_list forward(AutogradContext* context, at::TensorList /*inputs*/, const char* name,
                             const std::function<std::vector<at::Tensor>()>& issue) {
    context->saved_data["name"] = std::string(name);
    return issue();
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& /*gradients*/) {
    throw NotSupportedError(fmt::format(
        "{} has no gradient: use a function that ends in _autograd, or call detach() on its input if no gradient is "
        "wanted",
        context->saved_data["name"].toStringRef()));
  }
};

}  // namespace

at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  return AllGather::apply(tensor, group);
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  return ReduceScatter::apply(tensor, group);
}

at::Tensor all_to_all(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                      const std::vector<std::int64_t>& input_splits, const ProcessGroupPtr& group) {
  return AllToAll::apply(tensor, output_splits, input_splits, group);
}

at::Tensor wait(const at::Tensor& in_flight) {
  return Wait::apply(in_flight);
}

std::vector<at::Tensor> refusing_backward(const char* name, const std::vector<at::Tensor>& inputs,
                                          const std::function<std::vector<at::Tensor>()>& issue) {
  const bool is_differentiated =
      at::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const auto& each) { return each.requires_grad(); });
  return is_differentiated ? Refusal::apply(at::TensorList(inputs), name, issue) : issue();
}

}  // namespace cohort::functional::differentiable
