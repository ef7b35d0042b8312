// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/sink.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <unordered_set>

namespace cohort::ddp {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Sink : torch::autograd::Function<Sink> {
  static variable_list forward(AutogradContext* context, at::TensorList outputs,
                               const std::shared_ptr<Reducer>& reducer, bool clones) {
    context->set_materialize_grads(false);
    // A weak pointer: a graph may live longer than its model and must not keep the buckets alive.
    context->saved_data["reducer"] = c10::IValue::make_capsule(c10::make_intrusive<Handle>(reducer));
    variable_list passed;
    for (const auto& each : outputs) passed.push_back(clones ? each.clone() : each.view_as(each));
    return passed;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto handle = context->saved_data["reducer"].toCapsule();
    if (const auto reducer = static_cast<const Handle&>(*handle).reducer.lock()) reducer->start_learning();
    auto passed = gradients;
    passed.resize(gradients.size() + 2);  // no gradients for the two arguments that are not tensors
    return passed;
  }

  struct Handle : torch::CustomClassHolder {
    explicit Handle(const std::shared_ptr<Reducer>& its) : reducer(its) {}
    std::weak_ptr<Reducer> reducer;
  };
};

}  // namespace

bool pass_through_sink(const std::vector<at::Tensor*>& outputs, const std::shared_ptr<Reducer>& reducer, bool clones) {
  variable_list with_graph;
  std::vector<at::Tensor*> places;
  for (auto* const each : outputs) {
    if (!each->defined() || each->grad_fn() == nullptr) continue;
    with_graph.push_back(*each);
    places.push_back(each);
  }
  if (with_graph.empty()) return false;
  const auto passed = Sink::apply(at::TensorList(with_graph), reducer, clones);
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = passed[i];
  return true;
}

void watch_backwards_of(const std::vector<at::Tensor*>& outputs, const std::shared_ptr<Reducer>& reducer) {
  std::unordered_set<const torch::autograd::Node*> watched;  // one function may have made several outputs
  for (const auto* const each : outputs) {
    if (!each->defined()) continue;
    const auto& function = each->grad_fn();
    if (function == nullptr || !watched.insert(function.get()).second) continue;
    function->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [weak = std::weak_ptr(reducer)](const variable_list& results, const variable_list& /*gradients*/) {
          if (const auto its = weak.lock()) its->enter_graph();
          return results;
        }));
  }
}

}  // namespace cohort::ddp
