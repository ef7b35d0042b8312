// SPDX-License-Identifier: BSD-3-Clause
//
// The operators are those of libtorch's optimizers (of PyTorch's for those that libtorch does not have in C++), in
// their order and with the same numbers in double, so that results have the same bits. Numbers that change from step to
// step are host arguments (capture_host.h), so that a replay of a captured step computes with its own.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/optim.h>
#include <torch/optim/serialize.h>

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch/compat/state_key.h"
#include "torch/optim/optimizer_fields.h"

namespace cohort::optim {

namespace {

using StateKey = decltype(state_key(at::Tensor()));

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode enable(true);
  return closure();
}

/// Calls `body` with the number of its group, its options and the parameter, for all that have a gradient.
template <class Options, class Body>
void each_with_gradient(torch::optim::Optimizer& optimizer, Body&& body) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& options = static_cast<const Options&>(groups[i].options());
    for (const auto& parameter : groups[i].params()) {
      if (parameter.grad().defined()) body(i, options, parameter);
    }
  }
}

/// The state of a parameter. A replay does not create or look for tensors, it writes those that were recorded: if the
/// optimizer has others by now, it would go on with the old ones and nobody would notice. `tensor_of` gives the tensor
/// of a state by which that is seen.
template <class State, class TensorOf>
State& recorded_state(torch::optim::Optimizer& optimizer, const StateKey& key, TensorOf&& tensor_of,
                      const at::Tensor& recorded) {
  const auto it = optimizer.state().find(key);
  if (it == optimizer.state().end() || !tensor_of(static_cast<State&>(*it->second)).is_same(recorded)) {
    throw Error(
        "an optimizer's state was loaded or replaced after the step was recorded, and a replay would step with the old "
        "one: capture the step anew");
  }
  return static_cast<State&>(*it->second);
}

/// The gradient with what an L2 penalty adds to it.
at::Tensor decayed(const at::Tensor& gradient, const at::Tensor& parameter, double weight_decay) {
  return weight_decay == 0 ? gradient : gradient.add(parameter, weight_decay);
}

/// The numbers that differ from step to step.
struct StepNumbers {
  double minus_step_size = 0;
  double kept_weight = 1;         ///< what the weight is multiplied by if its decay is decoupled from the gradient
  double root_of_correction = 1;  ///< of the bias of a second moment
};
/// Of the step that is taken, also in a replay.
using StepNumbersPtr = std::shared_ptr<const StepNumbers>;

/// One of them as an argument of the next operator.
HostArgument host_argument(const char* name, const StepNumbersPtr& numbers, double StepNumbers::*which) {
  return HostArgument(name, [numbers, which] { return c10::Scalar((*numbers).*which); });
}
HostArgument minus_step_size(const char* name, const StepNumbersPtr& numbers) {
  return host_argument(name, numbers, &StepNumbers::minus_step_size);
}

/// 1 - beta^step, by which a moment that began as zero is too small.
double bias_correction(double beta, std::int64_t step) {
  return 1 - std::pow(beta, static_cast<double>(step));
}

void make_filled(at::Tensor& tensor, const at::Tensor& parameter, double value) {
  if (!tensor.defined()) tensor = at::full_like(parameter, value, at::MemoryFormat::Preserve);
}
void make_zeros(at::Tensor& tensor, const at::Tensor& parameter) {
  if (!tensor.defined()) tensor = at::zeros_like(parameter, at::MemoryFormat::Preserve);
}

// --- how one parameter is stepped -------------------------------------------------------------------------------------
// Each rule makes the tensors of a state that are not there yet, computes the numbers of a step, counted from 1, and
// steps a parameter that has a gradient. `recorded` is a tensor that each state has from its first step on.

template <class OptionsClass, class StateClass>
struct AdamRule {
  using Options = OptionsClass;
  using State = StateClass;
  static constexpr bool is_decoupled = std::is_same_v<Options, torch::optim::AdamWOptions>;
  static constexpr std::string_view name = is_decoupled ? "AdamW" : "Adam";

  static at::Tensor& recorded(State& state) { return state.exp_avg(); }
  static void make(const Options& options, State& state, const at::Tensor& parameter) {
    make_zeros(state.exp_avg(), parameter);
    make_zeros(state.exp_avg_sq(), parameter);
    if (options.amsgrad()) make_zeros(state.max_exp_avg_sq(), parameter);
  }
  static StepNumbers numbers(const Options& options, std::int64_t step) {
    const auto [beta1, beta2] = options.betas();
    return {.minus_step_size = -(options.lr() / bias_correction(beta1, step)),
            .kept_weight = 1 - options.lr() * options.weight_decay(),
            .root_of_correction = std::sqrt(bias_correction(beta2, step))};
  }
  static void update(const Options& options, State& state, const at::Tensor& parameter, const StepNumbersPtr& numbers) {
    const auto [beta1, beta2] = options.betas();
    auto change = parameter.grad();
    if (is_decoupled && options.weight_decay() != 0) {
      const auto kept = host_argument("other", numbers, &StepNumbers::kept_weight);
      parameter.mul_(kept.value());
    } else {
      change = decayed(change, parameter, options.weight_decay());
    }
    state.exp_avg().mul_(beta1).add_(change, 1 - beta1);
    state.exp_avg_sq().mul_(beta2).addcmul_(change, change, 1 - beta2);
    auto square = state.exp_avg_sq();
    if (options.amsgrad()) {
      square = state.max_exp_avg_sq();
      at::maximum_out(square, state.exp_avg_sq(), square);
    }
    auto denominator = square.sqrt();
    {
      const auto root = host_argument("other", numbers, &StepNumbers::root_of_correction);
      denominator = denominator.div(root.value());
    }
    denominator.add_(options.eps());
    const auto value = minus_step_size("value", numbers);
    parameter.addcdiv_(state.exp_avg(), denominator, value.value());
  }
};

struct AdagradRule {
  static constexpr std::string_view name = "Adagrad";
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  static at::Tensor& recorded(State& state) { return state.sum(); }
  static void make(const Options& options, State& state, const at::Tensor& parameter) {
    make_filled(state.sum(), parameter, options.initial_accumulator_value());
  }
  static StepNumbers numbers(const Options& options, std::int64_t step) {
    return {.minus_step_size = -(options.lr() / (1 + static_cast<double>(step - 1) * options.lr_decay()))};
  }
  static void update(const Options& options, State& state, const at::Tensor& parameter, const StepNumbersPtr& numbers) {
    const auto change = decayed(parameter.grad(), parameter, options.weight_decay());
    state.sum().addcmul_(change, change, 1.0);
    const auto spread = state.sum().sqrt().add_(options.eps());
    const auto value = minus_step_size("value", numbers);
    parameter.addcdiv_(change, spread, value.value());
  }
};

struct RMSpropRule {
  static constexpr std::string_view name = "RMSprop";
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;

  static at::Tensor& recorded(State& state) { return state.square_avg(); }
  static void make(const Options& options, State& state, const at::Tensor& parameter) {
    make_zeros(state.square_avg(), parameter);
    if (options.centered()) make_zeros(state.grad_avg(), parameter);
    if (options.momentum() > 0) make_zeros(state.momentum_buffer(), parameter);
  }
  static StepNumbers numbers(const Options& options, std::int64_t /*step*/) {
    return {.minus_step_size = -options.lr()};
  }
  static void update(const Options& options, State& state, const at::Tensor& parameter, const StepNumbersPtr& numbers) {
    const auto change = decayed(parameter.grad(), parameter, options.weight_decay());
    auto& square = state.square_avg();
    square.mul_(options.alpha()).addcmul_(change, change, 1 - options.alpha());
    at::Tensor spread;
    if (options.centered()) {
      auto& mean = state.grad_avg();
      mean.mul_(options.alpha()).add_(change, 1 - options.alpha());
      spread = square.addcmul(mean, mean, -1).sqrt_().add_(options.eps());
    } else {
      spread = square.sqrt().add_(options.eps());
    }
    if (options.momentum() > 0) {
      state.momentum_buffer().mul_(options.momentum()).addcdiv_(change, spread);
      const auto alpha = minus_step_size("alpha", numbers);
      parameter.add_(state.momentum_buffer(), alpha.value());
    } else {
      const auto value = minus_step_size("value", numbers);
      parameter.addcdiv_(change, spread, value.value());
    }
  }
};

struct AdadeltaRule {
  static constexpr std::string_view name = "Adadelta";
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;

  static at::Tensor& recorded(State& state) { return state.square_avg(); }
  static void make(const Options& /*options*/, State& state, const at::Tensor& parameter) {
    make_zeros(state.square_avg(), parameter);
    make_zeros(state.acc_delta(), parameter);
  }
  static StepNumbers numbers(const Options& options, std::int64_t /*step*/) {
    return {.minus_step_size = -options.lr()};
  }
  static void update(const Options& options, State& state, const at::Tensor& parameter, const StepNumbersPtr& numbers) {
    const auto slope = decayed(parameter.grad(), parameter, options.weight_decay());
    auto& square = state.square_avg();
    auto& moved = state.acc_delta();
    square.mul_(options.rho()).addcmul_(slope, slope, 1 - options.rho());
    const auto spread = square.add(options.eps()).sqrt_();
    const auto change = moved.add(options.eps()).sqrt_().div_(spread).mul_(slope);
    moved.mul_(options.rho()).addcmul_(change, change, 1 - options.rho());
    const auto alpha = minus_step_size("alpha", numbers);
    parameter.add_(change, alpha.value());
  }
};

struct AdamaxRule {
  static constexpr std::string_view name = "Adamax";
  using Options = AdamaxOptions;
  using State = AdamaxParamState;

  static at::Tensor& recorded(State& state) { return state.exp_avg(); }
  static void make(const Options& /*options*/, State& state, const at::Tensor& parameter) {
    make_zeros(state.exp_avg(), parameter);
    make_zeros(state.exp_inf(), parameter);
  }
  static StepNumbers numbers(const Options& options, std::int64_t step) {
    return {.minus_step_size = -(options.lr() / bias_correction(std::get<0>(options.betas()), step))};
  }
  static void update(const Options& options, State& state, const at::Tensor& parameter, const StepNumbersPtr& numbers) {
    const auto [beta1, beta2] = options.betas();
    const auto change = decayed(parameter.grad(), parameter, options.weight_decay());
    auto& largest = state.exp_inf();
    state.exp_avg().mul_(beta1).add_(change, 1 - beta1);
    at::maximum_out(largest, largest.mul_(beta2), change.abs().add_(options.eps()));
    const auto value = minus_step_size("value", numbers);
    parameter.addcdiv_(state.exp_avg(), largest, value.value());
  }
};

struct RpropRule {
  static constexpr std::string_view name = "Rprop";
  using Options = RpropOptions;
  using State = RpropParamState;

  static at::Tensor& recorded(State& state) { return state.prev(); }
  static void make(const Options& options, State& state, const at::Tensor& parameter) {
    make_zeros(state.prev(), parameter);
    make_filled(state.step_size(), parameter, options.lr());
  }
  static StepNumbers numbers(const Options& /*options*/, std::int64_t /*step*/) { return {}; }
  static void update(const Options& options, State& state, const at::Tensor& parameter,
                     const StepNumbersPtr& /*numbers*/) {
    const auto gradient = parameter.grad();
    auto& sizes = state.step_size();
    const auto product = gradient.mul(state.prev());
    const auto turned = product.lt(0);
    sizes.copy_(
        at::where(product.gt(0), sizes * options.eta_plus(), at::where(turned, sizes * options.eta_minus(), sizes)));
    sizes.clamp_(options.step_min(), options.step_max());
    // Where the sign has changed there is no step, and the next one counts as the first.
    const auto change = gradient.masked_fill(turned, 0);
    parameter.addcmul_(change.sign(), sizes, -1);
    state.prev().copy_(change);
  }
};

template <class Options>
struct RuleFor;
template <>
struct RuleFor<AdadeltaOptions> : AdadeltaRule {};
template <>
struct RuleFor<AdamaxOptions> : AdamaxRule {};
template <>
struct RuleFor<RpropOptions> : RpropRule {};

// --- a step of all parameters -----------------------------------------------------------------------------------------

/// One parameter in a step, for the host's part of it.
struct Turn {
  std::size_t group = 0;
  StateKey key{};
  at::Tensor recorded{};
  std::shared_ptr<StepNumbers> numbers = std::make_shared<StepNumbers>();
};

/// Counts the step for each parameter and computes its numbers.
template <class Rule>
void count_step(torch::optim::Optimizer& optimizer, const std::vector<Turn>& turns) {
  const Turn* before = nullptr;
  std::int64_t step_before = 0;
  for (const auto& turn : turns) {
    auto& state = recorded_state<typename Rule::State>(optimizer, turn.key, Rule::recorded, turn.recorded);
    const auto step = state.step() + 1;
    state.step(step);
    if (before != nullptr && before->group == turn.group && step_before == step) {
      *turn.numbers = *before->numbers;  // powers cost more than all the rest here
    } else {
      // By number, because users and ZeroOptimizer replace a group's options as a whole.
      const auto& options = optimizer.param_groups()[turn.group].options();
      *turn.numbers = Rule::numbers(static_cast<const typename Rule::Options&>(options), step);
    }
    before = &turn;
    step_before = step;
  }
}

template <class Rule>
at::Tensor step_by(torch::optim::Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure) {
  using Options = typename Rule::Options;
  using State = typename Rule::State;
  auto loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  each_with_gradient<Options>(optimizer, [&](std::size_t, const Options&, const at::Tensor& parameter) {
    if (parameter.grad().is_sparse())
      throw ValueError(fmt::format("{}: a sparse gradient; SGD takes them", Rule::name));
  });
  std::vector<Turn> turns;
  each_with_gradient<Options>(optimizer, [&](std::size_t group, const Options& options, const at::Tensor& parameter) {
    auto key = state_key(parameter);
    auto& state = optimizer.state()[key];
    if (state == nullptr) state = std::make_unique<State>();
    auto& own = static_cast<State&>(*state);
    Rule::make(options, own, parameter);
    turns.push_back({.group = group, .key = std::move(key), .recorded = Rule::recorded(own)});
  });
  on_host([&optimizer, turns] { count_step<Rule>(optimizer, turns); });
  auto turn = turns.begin();
  each_with_gradient<Options>(optimizer, [&](std::size_t, const Options& options, const at::Tensor& parameter) {
    Rule::update(options, static_cast<State&>(*optimizer.state()[turn->key]), parameter, turn->numbers);
    ++turn;
  });
  return loss;
}

void step_sgd(torch::optim::Optimizer& optimizer) {
  using torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr auto momentum_of = [](State& state) -> at::Tensor& { return state.momentum_buffer(); };
  std::vector<std::pair<StateKey, at::Tensor>> recorded;
  each_with_gradient<SGDOptions>(optimizer, [&](std::size_t, const SGDOptions& options, const at::Tensor& parameter) {
    if (parameter.grad().is_sparse() && options.weight_decay() != 0) {
      throw ValueError("SGD: a sparse gradient, and weight decay, which would make it dense");
    }
    if (options.momentum() == 0) return;
    auto key = state_key(parameter);
    const auto it = optimizer.state().find(key);
    if (it != optimizer.state().end()) {
      recorded.emplace_back(std::move(key), static_cast<State&>(*it->second).momentum_buffer());
    }
  });
  if (!recorded.empty()) {
    on_host([&optimizer, recorded] {
      for (const auto& [key, momentum] : recorded) {
        recorded_state<State>(optimizer, key, momentum_of, momentum);
      }
    });
  }
  each_with_gradient<SGDOptions>(
      optimizer, [&](std::size_t group, const SGDOptions& options, const at::Tensor& parameter) {
        auto change = decayed(parameter.grad(), parameter, options.weight_decay());
        if (options.momentum() != 0) {
          auto& state = optimizer.state()[state_key(parameter)];
          if (state == nullptr) state = std::make_unique<State>();
          auto& momentum = momentum_of(static_cast<State&>(*state));
          if (momentum.defined()) {
            momentum.mul_(options.momentum()).add_(change, 1 - options.dampening());
          } else {
            momentum = change.clone();
          }
          change = options.nesterov() ? change.add(momentum, options.momentum()) : momentum;
        }
        const HostArgument alpha(
            "alpha", [&optimizer, group] { return c10::Scalar(-optimizer.param_groups()[group].options().get_lr()); });
        parameter.add_(change, alpha.value());
      });
}

// --- options, and what is saved ---------------------------------------------------------------------------------------

void require(bool fits, std::string_view optimizer, std::string_view option, double value) {
  if (!fits) throw ValueError(fmt::format("{}: {} cannot be {}", optimizer, option, value));
}
/// What all three have in common.
template <class Options>
void check_common(const Options& options, std::string_view name) {
  require(options.lr() >= 0, name, "lr", options.lr());
  if constexpr (requires { options.weight_decay(); }) {
    require(options.weight_decay() >= 0, name, "weight_decay", options.weight_decay());
  }
  if constexpr (requires { options.eps(); }) require(options.eps() >= 0, name, "eps", options.eps());
}
void check(const AdadeltaOptions& options) {
  check_common(options, "Adadelta");
  require(options.rho() >= 0 && options.rho() <= 1, "Adadelta", "rho", options.rho());
}
void check(const AdamaxOptions& options) {
  check_common(options, "Adamax");
  const auto [beta1, beta2] = options.betas();
  require(beta1 >= 0 && beta1 < 1, "Adamax", "beta1", beta1);
  require(beta2 >= 0 && beta2 < 1, "Adamax", "beta2", beta2);
}
void check(const RpropOptions& options) {
  check_common(options, "Rprop");
  require(options.eta_minus() > 0 && options.eta_minus() < 1, "Rprop", "eta_minus", options.eta_minus());
  require(options.eta_plus() > 1, "Rprop", "eta_plus", options.eta_plus());
  require(options.step_min() <= options.step_max(), "Rprop", "step_min", options.step_min());
}

/// As libtorch's classes do: an undefined tensor is left out.
template <class Fields>
void write_fields(const Fields& fields, torch::serialize::OutputArchive& archive) {
  each_field(fields, [&]<class Field>(const char* name, const Field& field) {
    if constexpr (std::is_same_v<Field, at::Tensor>) {
      if (!field.defined()) return;
    }
    archive.write(name, c10::IValue(field));
  });
}
template <class Fields>
void read_fields(Fields& fields, torch::serialize::InputArchive& archive) {
  each_field(fields, [&]<class Field>(const char* name, Field& field) {
    c10::IValue value;
    if (archive.try_read(name, value)) {
      field = value.to<Field>();
    } else if constexpr (!std::is_same_v<Field, at::Tensor>) {
      throw ValueError(fmt::format("an optimizer's {} is missing in what was saved", name));
    }
  });
}

}  // namespace

void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
        continue;
      }
      if (gradient.requires_grad()) gradient.detach_();
      gradient.zero_();
    }
  }
}

at::Tensor SGD::step(LossClosure closure) {
  auto loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  step_sgd(*this);
  return loss;
}

at::Tensor Adam::step(LossClosure closure) {
  return step_by<AdamRule<torch::optim::AdamOptions, torch::optim::AdamParamState>>(*this, closure);
}

at::Tensor AdamW::step(LossClosure closure) {
  return step_by<AdamRule<torch::optim::AdamWOptions, torch::optim::AdamWParamState>>(*this, closure);
}

at::Tensor Adagrad::step(LossClosure closure) {
  return step_by<AdagradRule>(*this, closure);
}

at::Tensor RMSprop::step(LossClosure closure) {
  return step_by<RMSpropRule>(*this, closure);
}

// --- those that libtorch does not have --------------------------------------------------------------------------------

template <class Options>
double OwnOptions<Options>::get_lr() const {
  return static_cast<const Options&>(*this).lr();
}
template <class Options>
void OwnOptions<Options>::set_lr(double lr) {
  static_cast<Options&>(*this).lr(lr);
}
template <class Options>
void OwnOptions<Options>::serialize(torch::serialize::InputArchive& archive) {
  read_fields(static_cast<Options&>(*this), archive);
}
template <class Options>
void OwnOptions<Options>::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(static_cast<const Options&>(*this), archive);
}

template <class State>
void OwnState<State>::serialize(torch::serialize::InputArchive& archive) {
  read_fields(static_cast<State&>(*this), archive);
}
template <class State>
void OwnState<State>::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(static_cast<const State&>(*this), archive);
}

template <class OptionsClass, class StateClass>
OwnOptimizer<OptionsClass, StateClass>::OwnOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                                     OptionsClass defaults)
    : Optimizer(std::move(groups), std::make_unique<OptionsClass>(defaults)) {
  check(defaults);
  for (const auto& group : param_groups()) check(static_cast<const OptionsClass&>(group.options()));
}
template <class OptionsClass, class StateClass>
OwnOptimizer<OptionsClass, StateClass>::OwnOptimizer(std::vector<at::Tensor> parameters, OptionsClass defaults)
    : OwnOptimizer(std::vector{torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
template <class OptionsClass, class StateClass>
at::Tensor OwnOptimizer<OptionsClass, StateClass>::step(LossClosure closure) {
  return step_by<RuleFor<OptionsClass>>(*this, closure);
}
template <class OptionsClass, class StateClass>
void OwnOptimizer<OptionsClass, StateClass>::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<StateClass, OptionsClass>(archive, *this);
}
template <class OptionsClass, class StateClass>
void OwnOptimizer<OptionsClass, StateClass>::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<StateClass, OptionsClass>(archive, *this);
}

template class OwnOptions<AdadeltaOptions>;
template class OwnOptions<AdamaxOptions>;
template class OwnOptions<RpropOptions>;
template class OwnState<AdadeltaParamState>;
template class OwnState<AdamaxParamState>;
template class OwnState<RpropParamState>;
template class OwnOptimizer<AdadeltaOptions, AdadeltaParamState>;
template class OwnOptimizer<AdamaxOptions, AdamaxParamState>;
template class OwnOptimizer<RpropOptions, RpropParamState>;

}  // namespace cohort::optim
