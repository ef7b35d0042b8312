// SPDX-License-Identifier: BSD-3-Clause
//
// Backward hooks of modules: an identity in front of the module, and one behind it, whose backwards call them.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/capture_hook.h>
#include <torch/csrc/autograd/custom_function.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cohort {

namespace {

Gradients checked(const std::optional<Gradients>& returned, const Gradients& before,
                  const BackwardHookOptions& options) {
  if (!returned) return before;
  if (returned->size() != before.size()) {
    throw ValueError(fmt::format("{}: it returned {} gradients for {}", options.name, returned->size(), before.size()));
  }
  return *returned;
}

/// Runs a hook on the gradients, of which the first `count` are those that it may replace.
template <class Hook>
Gradients run_hook(const BackwardHookOptions& options, const Gradients& all, std::size_t count, const Hook& hook) {
  const auto run = [options, count, hook](const Gradients& given) {
    const Gradients before(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(count));
    const Gradients rest(given.begin() + static_cast<std::ptrdiff_t>(count), given.end());
    return checked(hook(before, rest), before, options);
  };
  return options.is_opaque ? opaque_call(options.name, run, all) : run(all);
}

}  // namespace

struct BackwardHooks::Hooks {
  template <class Function>
  struct Registered {
    std::size_t number;
    Function function;
    BackwardHookOptions options;
  };
  std::vector<Registered<ModulePreHook>> before{};
  std::vector<Registered<ModuleHook>> after{};
};

/// Shared by both identities of one forward.
struct BackwardHooks::Passage::State {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<const Hooks> hooks;
  bool has_inputs = false;  ///< that need a gradient
  std::vector<bool> is_passed{};
  Gradients outputs{};

  /// An opaque hook runs in replays, when this backward is long over, so it holds what it needs.
  Gradients before_module(Gradients gradients) {
    for (const auto& each : hooks->before) {
      gradients = run_hook(each.options, gradients, gradients.size(),
                           [function = each.function, to = module](const Gradients& given, const Gradients& /*rest*/) {
                             return function(*to, given);
                           });
    }
    outputs = gradients;
    if (!has_inputs) after_module(Gradients(is_passed.size()));
    return gradients;
  }

  Gradients after_module(Gradients gradients) {
    for (const auto& each : hooks->after) {
      auto all = gradients;
      all.insert(all.end(), outputs.begin(), outputs.end());
      gradients =
          run_hook(each.options, all, gradients.size(),
                   [function = each.function, to = module](const Gradients& inputs, const Gradients& of_results) {
                     return function(*to, inputs, of_results);
                   });
    }
    outputs.clear();
    return gradients;
  }
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Continue = std::function<variable_list(const variable_list&)>;

struct Handle : torch::CustomClassHolder {
  explicit Handle(Continue its) : function(std::move(its)) {}
  Continue function;
};

/// Passes tensors on, and their gradients through a function.
struct HookedIdentity : torch::autograd::Function<HookedIdentity> {
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const Continue& function) {
    context->set_materialize_grads(false);
    context->saved_data["function"] = c10::IValue::make_capsule(c10::make_intrusive<Handle>(function));
    variable_list passed;
    for (const auto& each : tensors) passed.push_back(each.view_as(each));
    return passed;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto handle = context->saved_data["function"].toCapsule();
    auto passed = static_cast<const Handle&>(*handle).function(gradients);
    passed.emplace_back();  // no gradient for the function
    return passed;
  }
};

/// Puts what the identity returns in the place of those tensors that have a gradient, and says which these are.
std::vector<bool> pass(const std::vector<at::Tensor*>& tensors, const Continue& function) {
  variable_list differentiable;
  std::vector<bool> is_passed;
  for (const auto* const each : tensors) {
    is_passed.push_back(at::GradMode::is_enabled() && each->defined() && each->requires_grad());
    if (is_passed.back()) differentiable.push_back(*each);
  }
  if (differentiable.empty()) return is_passed;
  const auto passed = HookedIdentity::apply(at::TensorList(differentiable), function);
  std::size_t next = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_passed[i]) *tensors[i] = passed[next++];
  }
  return is_passed;
}

/// Gradients of all tensors, from those of the ones that were passed; and back.
Gradients spread(const variable_list& gradients, const std::vector<bool>& is_passed) {
  Gradients all;
  std::size_t next = 0;
  for (const bool each : is_passed) all.push_back(each ? gradients[next++] : at::Tensor());
  return all;
}
variable_list gather(const Gradients& all, const std::vector<bool>& is_passed) {
  variable_list gradients;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_passed[i]) gradients.push_back(all[i]);
  }
  return gradients;
}

class HooksSnapshot : public WatchSnapshot {
 public:
  explicit HooksSnapshot(std::function<bool()> is_unchanged) : is_unchanged_(std::move(is_unchanged)) {}
  std::optional<std::string> change() const override {
    if (is_unchanged_()) return std::nullopt;
    return "a backward hook of a module was registered or removed";
  }
  const std::vector<WatchedTensor>& parameters() const override { return none_; }

 private:
  std::function<bool()> is_unchanged_;
  std::vector<WatchedTensor> none_;
};

}  // namespace

BackwardHooks::BackwardHooks(std::shared_ptr<torch::nn::Module> module)
    : module_(std::move(module)), hooks_(std::make_shared<const Hooks>()) {
  if (module_ == nullptr) throw ValueError("HookedModule: the module is null");
}

std::size_t BackwardHooks::register_backward_pre_hook(ModulePreHook hook, BackwardHookOptions options) {
  auto hooks = *hooks_;
  hooks.before.push_back({.number = next_, .function = std::move(hook), .options = std::move(options)});
  hooks_ = std::make_shared<const Hooks>(std::move(hooks));
  return next_++;
}

std::size_t BackwardHooks::register_backward_hook(ModuleHook hook, BackwardHookOptions options) {
  auto hooks = *hooks_;
  hooks.after.push_back({.number = next_, .function = std::move(hook), .options = std::move(options)});
  hooks_ = std::make_shared<const Hooks>(std::move(hooks));
  return next_++;
}

void BackwardHooks::remove_hook(std::size_t number) {
  auto hooks = *hooks_;
  const auto is_it = [number](const auto& each) { return each.number == number; };
  if (std::erase_if(hooks.before, is_it) + std::erase_if(hooks.after, is_it) == 0) {
    throw KeyError(fmt::format("HookedModule: there is no hook {}", number));
  }
  hooks_ = std::make_shared<const Hooks>(std::move(hooks));
}

std::unique_ptr<WatchSnapshot> BackwardHooks::watch_snapshot() const {
  return std::make_unique<HooksSnapshot>([this, then = hooks_] { return hooks_ == then; });
}

BackwardHooks::Passage::Passage(const BackwardHooks& hooks)
    : state_(std::make_shared<State>(State{.module = hooks.module_, .hooks = hooks.hooks_})) {}

void BackwardHooks::Passage::enter(const std::vector<at::Tensor*>& arguments) {
  state_->is_passed = pass(arguments, [state = state_](const variable_list& gradients) {
    return gather(state->after_module(spread(gradients, state->is_passed)), state->is_passed);
  });
  state_->has_inputs = std::find(state_->is_passed.begin(), state_->is_passed.end(), true) != state_->is_passed.end();
}

void BackwardHooks::Passage::leave(const std::vector<at::Tensor*>& results) {
  const auto is_passed = std::make_shared<std::vector<bool>>();
  *is_passed = pass(results, [state = state_, is_passed](const variable_list& gradients) {
    return gather(state->before_module(spread(gradients, *is_passed)), *is_passed);
  });
}

}  // namespace cohort
