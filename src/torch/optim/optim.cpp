// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/optim.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/compat/state_key.h"
#include "torch/optim/update_rules.h"

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
/// optimizer has others by now, it would go on with the old ones and nobody would notice.
template <class State>
State& recorded_state(torch::optim::Optimizer& optimizer, const StateKey& key, at::Tensor& (State::*tensor)(),
                      const at::Tensor& recorded) {
  const auto it = optimizer.state().find(key);
  if (it == optimizer.state().end() || !(static_cast<State&>(*it->second).*tensor)().is_same(recorded)) {
    throw Error(
        "an optimizer's state was loaded or replaced after the step was recorded, and a replay would step with the old "
        "one: capture the step anew");
  }
  return static_cast<State&>(*it->second);
}

SgdRule rule_of(const torch::optim::SGDOptions& options) {
  return {.momentum = options.momentum(),
          .dampening = options.dampening(),
          .weight_decay = options.weight_decay(),
          .nesterov = options.nesterov()};
}

template <class Options>
AdamRule rule_of(const Options& options) {
  return {.beta1 = std::get<0>(options.betas()),
          .beta2 = std::get<1>(options.betas()),
          .eps = options.eps(),
          .weight_decay = options.weight_decay(),
          .amsgrad = options.amsgrad(),
          .decoupled = std::is_same_v<Options, torch::optim::AdamWOptions>};
}

/// One parameter in a step of Adam or AdamW, for the host's part of it.
struct AdamTurn {
  std::size_t group = 0;
  StateKey key{};
  at::Tensor mean{};
  std::shared_ptr<AdamNumbers> numbers = std::make_shared<AdamNumbers>();
};

/// Counts the step for each parameter and computes its numbers.
template <class Options, class State>
void count_step(torch::optim::Optimizer& optimizer, const std::vector<AdamTurn>& turns) {
  const AdamTurn* before = nullptr;
  std::int64_t step_before = 0;
  for (const auto& turn : turns) {
    auto& state = recorded_state<State>(optimizer, turn.key, &State::exp_avg, turn.mean);
    const auto step = state.step() + 1;
    state.step(step);
    if (before != nullptr && before->group == turn.group && step_before == step) {
      *turn.numbers = *before->numbers;  // powers cost more than all the rest here
    } else {
      const auto& options = static_cast<const Options&>(optimizer.param_groups()[turn.group].options());
      *turn.numbers = AdamNumbers(rule_of(options), options.lr(), step);
    }
    before = &turn;
    step_before = step;
  }
}

template <class Options, class State>
void step_adam(torch::optim::Optimizer& optimizer, std::string_view name) {
  each_with_gradient<Options>(optimizer, [&](std::size_t, const Options&, const at::Tensor& parameter) {
    if (parameter.grad().is_sparse()) throw ValueError(fmt::format("{}: a sparse gradient; SGD takes them", name));
  });
  std::vector<AdamTurn> turns;
  each_with_gradient<Options>(optimizer, [&](std::size_t group, const Options& options, const at::Tensor& parameter) {
    auto key = state_key(parameter);
    auto& state = optimizer.state()[key];
    if (state == nullptr) state = std::make_unique<State>();
    auto& own = static_cast<State&>(*state);
    AdamMoments{own.exp_avg(), own.exp_avg_sq(), own.max_exp_avg_sq()}.make(rule_of(options), parameter);
    turns.push_back({.group = group, .key = std::move(key), .mean = own.exp_avg()});
  });
  on_host([&optimizer, turns] { count_step<Options, State>(optimizer, turns); });
  auto turn = turns.begin();
  each_with_gradient<Options>(optimizer, [&](std::size_t, const Options& options, const at::Tensor& parameter) {
    auto& state = static_cast<State&>(*optimizer.state()[turn->key]);
    adam_update(rule_of(options), {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()}, parameter,
                parameter.grad(), turn->numbers);
    ++turn;
  });
}

void step_sgd(torch::optim::Optimizer& optimizer) {
  using torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
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
        recorded_state<State>(optimizer, key, &State::momentum_buffer, momentum);
      }
    });
  }
  each_with_gradient<SGDOptions>(
      optimizer, [&](std::size_t group, const SGDOptions& options, const at::Tensor& parameter) {
        at::Tensor none;
        auto* momentum = &none;
        if (options.momentum() != 0) {
          auto& state = optimizer.state()[state_key(parameter)];
          if (state == nullptr) state = std::make_unique<State>();
          momentum = &static_cast<State&>(*state).momentum_buffer();
        }
        // By number, because users and ZeroOptimizer replace a group's options as a whole.
        sgd_update(rule_of(options), *momentum, parameter, parameter.grad(),
                   [&optimizer, group] { return c10::Scalar(-optimizer.param_groups()[group].options().get_lr()); });
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
  auto loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  step_adam<torch::optim::AdamOptions, torch::optim::AdamParamState>(*this, "Adam");
  return loss;
}

at::Tensor AdamW::step(LossClosure closure) {
  auto loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  step_adam<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(*this, "AdamW");
  return loss;
}

}  // namespace cohort::optim
