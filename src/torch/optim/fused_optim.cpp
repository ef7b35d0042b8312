// SPDX-License-Identifier: BSD-3-Clause
//
// The operations are those of libtorch's optimizers, in their order, so that results have the same bits.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/fused_optim.h>
#include <torch/serialize/archive.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "torch/archive.h"
#include "torch/optim/update_rules.h"

namespace cohort {

namespace {

/// The state of one parameter: a counter and up to three tensors, which are created when they are first needed.
struct FusedState {
  at::Tensor parameter{};  ///< held, so that its address stays its own
  std::int64_t steps = 0;
  std::array<at::Tensor, 3> tensors{};

  at::Tensor& tensor(std::size_t index) {
    auto& each = tensors[index];
    if (!each.defined()) each = at::zeros_like(parameter, at::MemoryFormat::Preserve);
    return each;
  }
};

class FusedBase : public FunctionalOptimizer {
 public:
  explicit FusedBase(std::string_view name) : name_(name) {}

  std::string_view name() const override { return name_; }

  void step(const at::Tensor& parameter, const at::Tensor& gradient) final {
    if (!parameter.defined() || !gradient.defined()) {
      throw ValueError(fmt::format("{}: an undefined {}", name_, parameter.defined() ? "gradient" : "parameter"));
    }
    if (parameter.sizes() != gradient.sizes()) {
      throw ValueError(fmt::format("{}: a gradient of shape [{}] for a parameter of shape [{}]", name_,
                                   fmt::join(gradient.sizes(), ", "), fmt::join(parameter.sizes(), ", ")));
    }
    if (gradient.is_sparse() && !takes_sparse()) {
      throw ValueError(fmt::format("{}: a sparse gradient; SGD without momentum takes them", name_));
    }
    const at::NoGradGuard no_grad;
    auto& state = state_of(parameter);
    on_host([&state] { ++state.steps; });
    update(state, parameter, gradient);
  }

  void save(torch::serialize::OutputArchive& archive, std::span<const at::Tensor> parameters) const override {
    write_value(archive, "name", std::string(name_));
    write_value(archive, "lr", lr());
    write_value(archive, "parameters", parameters.size());
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto it = states_.find(parameters[i].unsafeGetTensorImpl());
      if (it == states_.end()) continue;
      torch::serialize::OutputArchive state(archive.compilation_unit());
      write_value(state, "steps", it->second.steps);
      for (std::size_t k = 0; k < 3; ++k) {
        if (it->second.tensors[k].defined()) state.write("t" + std::to_string(k), it->second.tensors[k], true);
      }
      archive.write("p" + std::to_string(i), state);
    }
  }

  void load(torch::serialize::InputArchive& archive, std::span<const at::Tensor> parameters) override {
    const auto name = read_value<std::string>(archive, "name");
    const auto lr = read_value<double>(archive, "lr");
    const auto count = read_value<std::size_t>(archive, "parameters");
    if (name != name_) throw ValueError(fmt::format("{}: what was saved is the state of {}", name_, name));
    if (count != parameters.size()) {
      throw ValueError(fmt::format("{}: it was saved for {} parameters, not {}", name_, count, parameters.size()));
    }
    std::unordered_map<c10::TensorImpl*, FusedState> states;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      torch::serialize::InputArchive from;
      if (!archive.try_read("p" + std::to_string(i), from)) continue;
      FusedState state{.parameter = parameters[i]};
      state.steps = read_value<std::int64_t>(from, "steps");
      for (std::size_t k = 0; k < 3; ++k) {
        at::Tensor tensor;
        if (!from.try_read("t" + std::to_string(k), tensor, true)) continue;
        if (tensor.sizes() != parameters[i].sizes()) {
          throw ValueError(fmt::format("{}: parameter {} has another shape than when it was saved", name_, i));
        }
        state.tensors[k] = tensor.to(parameters[i].device());
      }
      states.emplace(parameters[i].unsafeGetTensorImpl(), std::move(state));
    }
    set_lr(lr);
    const std::lock_guard lock(mutex_);
    states_ = std::move(states);
  }

 protected:
  virtual void update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) = 0;
  virtual bool takes_sparse() const { return false; }

 private:
  /// References into the map stay valid while other entries are added.
  FusedState& state_of(const at::Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    auto& state = states_[parameter.unsafeGetTensorImpl()];
    if (!state.parameter.defined()) state.parameter = parameter;
    return state;
  }

  std::string_view name_;
  mutable std::mutex mutex_;
  std::unordered_map<c10::TensorImpl*, FusedState> states_;
};

template <class Options>
class Fused final : public FusedBase {
 public:
  Fused(std::string_view name, const Options& options) : FusedBase(name), options_(options) {}

  double lr() const override { return options_.lr; }
  void set_lr(double lr) override { options_.lr = lr; }

 protected:
  void update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) override;
  bool takes_sparse() const override {
    if constexpr (std::is_same_v<Options, fused::SGD>) return options_.momentum == 0 && options_.weight_decay == 0;
    return false;
  }

 private:
  Options options_;
};

/// The operator's argument for the learning rate of the step.
template <class Options>
std::function<c10::Scalar()> minus_lr(const Options& options) {
  return [&options] { return c10::Scalar(-options.lr); };
}

template <>
void Fused<fused::SGD>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  const SgdRule rule{.momentum = options_.momentum,
                     .dampening = options_.dampening,
                     .weight_decay = options_.weight_decay,
                     .nesterov = options_.nesterov};
  sgd_update(rule, state.tensors[0], parameter, options_.maximize ? gradient.neg() : gradient, minus_lr(options_));
}

template <class Options>
void fused_adam(const Options& options, FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  const AdamRule rule{.beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .eps = options.eps,
                      .weight_decay = options.weight_decay,
                      .amsgrad = options.amsgrad,
                      .decoupled = std::is_same_v<Options, fused::AdamW>};
  const auto numbers = std::make_shared<AdamNumbers>();
  on_host([rule, &options, &state, numbers] { *numbers = AdamNumbers(rule, options.lr, state.steps); });
  auto& [mean, square, largest_square] = state.tensors;
  adam_update(rule, {mean, square, largest_square}, parameter, options.maximize ? gradient.neg() : gradient, numbers);
}

template <>
void Fused<fused::Adam>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  fused_adam(options_, state, parameter, gradient);
}

template <>
void Fused<fused::AdamW>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  fused_adam(options_, state, parameter, gradient);
}

template <>
void Fused<fused::Adagrad>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  auto& sum = state.tensors[0];
  if (!sum.defined()) sum = at::full_like(parameter, options_.initial_accumulator_value);
  const auto change = decayed(gradient, parameter, options_.weight_decay);
  sum.addcmul_(change, change, 1.0);
  const auto spread = sum.sqrt().add_(options_.eps);
  const HostArgument value("value", [this, &state] {
    return c10::Scalar(-(options_.lr / (1 + static_cast<double>(state.steps - 1) * options_.lr_decay)));
  });
  parameter.addcdiv_(change, spread, value.value());
}

template <>
void Fused<fused::Adadelta>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  auto& square = state.tensor(0);
  auto& moved = state.tensor(1);
  const auto slope = decayed(gradient, parameter, options_.weight_decay);
  square.mul_(options_.rho).addcmul_(slope, slope, 1 - options_.rho);
  const auto spread = square.add(options_.eps).sqrt_();
  const auto change = moved.add(options_.eps).sqrt_().div_(spread).mul_(slope);
  moved.mul_(options_.rho).addcmul_(change, change, 1 - options_.rho);
  const HostArgument alpha("alpha", minus_lr(options_));
  parameter.add_(change, alpha.value());
}

template <>
void Fused<fused::Adamax>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  auto& mean = state.tensor(0);
  auto& largest = state.tensor(1);
  const auto change = decayed(gradient, parameter, options_.weight_decay);
  mean.mul_(options_.beta1).add_(change, 1 - options_.beta1);
  at::maximum_out(largest, largest.mul_(options_.beta2), change.abs().add_(options_.eps));
  const HostArgument value("value", [this, &state] {
    return c10::Scalar(-(options_.lr / (1 - std::pow(options_.beta1, static_cast<double>(state.steps)))));
  });
  parameter.addcdiv_(mean, largest, value.value());
}

template <>
void Fused<fused::RMSprop>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  auto& square = state.tensor(0);
  const auto change = decayed(gradient, parameter, options_.weight_decay);
  square.mul_(options_.alpha).addcmul_(change, change, 1 - options_.alpha);
  at::Tensor spread;
  if (options_.centered) {
    auto& mean = state.tensor(1);
    mean.mul_(options_.alpha).add_(change, 1 - options_.alpha);
    spread = square.addcmul(mean, mean, -1).sqrt_().add_(options_.eps);
  } else {
    spread = square.sqrt().add_(options_.eps);
  }
  if (options_.momentum > 0) {
    auto& momentum = state.tensor(2);
    momentum.mul_(options_.momentum).addcdiv_(change, spread);
    const HostArgument alpha("alpha", minus_lr(options_));
    parameter.add_(momentum, alpha.value());
  } else {
    const HostArgument value("value", minus_lr(options_));
    parameter.addcdiv_(change, spread, value.value());
  }
}

template <>
void Fused<fused::Rprop>::update(FusedState& state, const at::Tensor& parameter, const at::Tensor& gradient) {
  auto& before = state.tensor(0);
  auto& sizes = state.tensors[1];
  if (!sizes.defined()) sizes = at::full_like(parameter, options_.lr);
  const auto product = gradient.mul(before);
  const auto turned = product.lt(0);
  sizes.copy_(
      at::where(product.gt(0), sizes * options_.eta_plus, at::where(turned, sizes * options_.eta_minus, sizes)));
  sizes.clamp_(options_.step_min, options_.step_max);
  // Where the sign has changed there is no step, and the next one counts as the first.
  const auto change = gradient.masked_fill(turned, 0);
  parameter.addcmul_(change.sign(), sizes, -1);
  before.copy_(change);
}

void require(bool ok, std::string_view name, std::string_view what, double value) {
  if (!ok) throw ValueError(fmt::format("{}: {} cannot be {}", name, what, value));
}
void require_not_negative(std::string_view name, std::string_view what, double value) {
  require(value >= 0, name, what, value);
}
void require_share(std::string_view name, std::string_view what, double value) {
  require(value >= 0 && value < 1, name, what, value);
}

template <class Options>
FunctionalOptimizerPtr make_checked(std::string_view name, const Options& options) {
  require_not_negative(name, "lr", options.lr);
  if constexpr (requires { options.weight_decay; }) require_not_negative(name, "weight_decay", options.weight_decay);
  if constexpr (requires { options.eps; }) require_not_negative(name, "eps", options.eps);
  if constexpr (requires { options.momentum; }) require_not_negative(name, "momentum", options.momentum);
  if constexpr (requires { options.beta1; }) {
    require_share(name, "beta1", options.beta1);
    require_share(name, "beta2", options.beta2);
  }
  return std::make_shared<Fused<Options>>(name, options);
}

}  // namespace

FunctionalOptimizerPtr make_functional(const fused::SGD& options) {
  if (options.nesterov && (options.momentum <= 0 || options.dampening != 0)) {
    throw ValueError("SGD: nesterov needs a momentum and no dampening");
  }
  return make_checked("SGD", options);
}
FunctionalOptimizerPtr make_functional(const fused::Adam& options) {
  return make_checked("Adam", options);
}
FunctionalOptimizerPtr make_functional(const fused::AdamW& options) {
  return make_checked("AdamW", options);
}
FunctionalOptimizerPtr make_functional(const fused::Adagrad& options) {
  require_not_negative("Adagrad", "lr_decay", options.lr_decay);
  require_not_negative("Adagrad", "initial_accumulator_value", options.initial_accumulator_value);
  return make_checked("Adagrad", options);
}
FunctionalOptimizerPtr make_functional(const fused::Adadelta& options) {
  require(options.rho >= 0 && options.rho <= 1, "Adadelta", "rho", options.rho);
  return make_checked("Adadelta", options);
}
FunctionalOptimizerPtr make_functional(const fused::Adamax& options) {
  return make_checked("Adamax", options);
}
FunctionalOptimizerPtr make_functional(const fused::RMSprop& options) {
  require_not_negative("RMSprop", "alpha", options.alpha);
  return make_checked("RMSprop", options);
}
FunctionalOptimizerPtr make_functional(const fused::Rprop& options) {
  require(options.eta_minus > 0 && options.eta_minus < 1, "Rprop", "eta_minus", options.eta_minus);
  require(options.eta_plus > 1, "Rprop", "eta_plus", options.eta_plus);
  require(options.step_min <= options.step_max, "Rprop", "step_min", options.step_min);
  return make_checked("Rprop", options);
}

FunctionalOptimizerPtr make_functional(std::string_view name) {
  if (name == "SGD") return make_functional(fused::SGD{});
  if (name == "Adam") return make_functional(fused::Adam{});
  if (name == "AdamW") return make_functional(fused::AdamW{});
  if (name == "Adagrad") return make_functional(fused::Adagrad{});
  if (name == "Adadelta") return make_functional(fused::Adadelta{});
  if (name == "Adamax") return make_functional(fused::Adamax{});
  if (name == "RMSprop") return make_functional(fused::RMSprop{});
  if (name == "Rprop") return make_functional(fused::Rprop{});
  throw ValueError(
      fmt::format("no functional optimizer is called {}: there are SGD, Adam, AdamW, Adagrad, Adadelta, "
                  "Adamax, RMSprop and Rprop",
                  name));
}

}  // namespace cohort
