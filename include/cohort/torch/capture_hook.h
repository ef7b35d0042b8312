// SPDX-License-Identifier: BSD-3-Clause
//
// Backward hooks in captured steps (capture.h). Backward is always part of the recording, so hooks run while the step
// is recorded, and the operators they call are replayed like all others: at::Tensor::register_hook, on parameters, on
// intermediate results and on arguments of the step, needs nothing more.
//
//   auto hidden = torch::relu(x);
//   hidden.register_hook([](const torch::Tensor& gradient) { return gradient * 0.5; });
//
// What a hook does on the host (counting, logging, reading a value) is not done again by a replay. A hook that must run
// each time is opaque: it is called in every replay, as one node of the graph, and may do anything but communicate.
//
//   hidden.register_hook(cohort::opaque_hook("norm", [](const torch::Tensor& gradient) {
//     std::cout << gradient.norm().item<float>() << "\n";
//     return torch::Tensor();                                      // keeps the gradient
//   }));
//
// Modules of libtorch have no backward hooks in C++. HookedModule has them, around the forward of any module:
//
//   cohort::HookedModule layer(torch::nn::Linear(16, 16));
//   layer.register_backward_hook([](torch::nn::Module&, const cohort::Gradients& inputs, const cohort::Gradients&) {
//     return cohort::Gradients{inputs[0].clamp(-1, 1)};            // replaces the gradient of the input
//   });
//   auto output = layer.forward(hidden);
//
// An opaque hook gets tensors that it may read and write, runs without recording gradients, and must return tensors of
// the same dtype, sizes and strides each time: a replay in which it does not ends with an AssertionError that names the
// hook. A hook that is added or removed later is a reason to record anew if the step watches what it was added to: the
// module of a parameter, or the HookedModule.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/torch/capture_watch.h>
#include <cohort/torch/outputs.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort {

/// Gradients of a module's tensors, in the order of its arguments or results; undefined where there is none.
using Gradients = std::vector<at::Tensor>;

/// Returns the gradient to go on with, or an undefined tensor to keep the one it got.
using TensorHook = std::function<at::Tensor(const at::Tensor& gradient)>;

/// A hook that every replay calls. Its name is for errors and for the graph.
COHORT_API TensorHook opaque_hook(std::string name, TensorHook hook);

/// Calls the function now and in every replay, as one node whose operators are not recorded. Gradients do not flow
/// through it. The tensors must not be distributed. Outside of a recording it is the call of the function.
using OpaqueFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
COHORT_API std::vector<at::Tensor> opaque_call(const std::string& name, const OpaqueFunction& function,
                                               const std::vector<at::Tensor>& inputs);

/// Gets the gradients of the module's results, before they go through the module. Returns those to go on with, as many,
/// or nullopt to keep them.
using ModulePreHook = std::function<std::optional<Gradients>(torch::nn::Module& module, const Gradients& outputs)>;
/// Gets the gradients of the module's arguments too. Returns those of the arguments to go on with, or nullopt.
using ModuleHook = std::function<std::optional<Gradients>(torch::nn::Module& module, const Gradients& inputs,
                                                          const Gradients& outputs)>;

struct BackwardHookOptions {
  bool is_opaque = false;
  std::string name = "backward hook";  ///< for errors, and for the graph if it is opaque
};

/// The part of HookedModule that does not depend on the module's type.
class COHORT_API BackwardHooks : public Watchable {
 public:
  /// Hooks run in the order in which they were registered. Returns a number for remove_hook().
  std::size_t register_backward_pre_hook(ModulePreHook hook, BackwardHookOptions options = {});
  std::size_t register_backward_hook(ModuleHook hook, BackwardHookOptions options = {});
  /// Forwards that have run keep the hook. Throws KeyError if there is no such hook.
  void remove_hook(std::size_t number);

  std::unique_ptr<WatchSnapshot> watch_snapshot() const override;

 protected:
  explicit BackwardHooks(std::shared_ptr<torch::nn::Module> module);

  struct Hooks;
  /// One forward of the module.
  class COHORT_API Passage {
   public:
    explicit Passage(const BackwardHooks& hooks);
    /// Puts tensors in the place of the arguments and of the results, whose gradients then pass the hooks.
    void enter(const std::vector<at::Tensor*>& arguments);
    void leave(const std::vector<at::Tensor*>& results);

   private:
    struct State;
    std::shared_ptr<State> state_;
  };

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<const Hooks> hooks_;  // replaced when a hook is added, so that a graph keeps those of its forward
  std::size_t next_ = 0;
};

/// A module with backward hooks. The module itself is as it was: only forwards through this object have hooks.
template <class M>
class HookedModule : public BackwardHooks {
 public:
  explicit HookedModule(std::shared_ptr<M> module) : BackwardHooks(module), module_(std::move(module)) {}
  explicit HookedModule(const torch::nn::ModuleHolder<M>& module) : HookedModule(module.ptr()) {}

  const std::shared_ptr<M>& module() const { return module_; }

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    Passage passage(*this);
    auto own = std::make_tuple(std::decay_t<Arguments>(std::forward<Arguments>(arguments))...);
    passage.enter(tensors_of(own));
    auto result = std::apply([this](auto&... each) { return module_->forward(std::move(each)...); }, own);
    passage.leave(tensors_of(result));
    return result;
  }

 private:
  template <class T>
  static std::vector<at::Tensor*> tensors_of(T& value) {
    std::vector<at::Tensor*> tensors;
    visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
    return tensors;
  }

  std::shared_ptr<M> module_;
};

template <class Holder>
  requires std::derived_from<Holder, torch::nn::ModuleHolder<typename Holder::ContainedType>>
HookedModule(Holder) -> HookedModule<typename Holder::ContainedType>;

}  // namespace cohort
