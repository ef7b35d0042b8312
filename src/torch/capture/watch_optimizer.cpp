// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/watch_optimizer.h"

#include <cohort/torch/capture_error.h>
#include <cohort/torch/zero_optimizer.h>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/optim/optimizer_fields.h"
#include "torch/optim/optimizer_kinds.h"
#include "torch/optim/replayed_rates.h"

namespace cohort::recording {

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

/// The hyper-parameters of a group. They are read at each replay, so nothing is allocated.
class Numbers {
 public:
  struct Number {
    std::string_view name;
    double value = 0;
    bool is_flag = false;
    bool operator==(const Number&) const = default;
  };

  template <class Options>
  explicit Numbers(const Options& options) {
    each_field(options, [this](std::string_view name, const auto& value) { add(name, value); });
  }

  bool operator==(const Numbers&) const = default;
  const Number* begin() const noexcept { return numbers_.data(); }
  const Number* end() const noexcept { return numbers_.data() + count_; }

 private:
  void add(std::string_view name, double value) { numbers_.at(count_++) = {.name = name, .value = value}; }
  void add(std::string_view name, bool value) {
    numbers_.at(count_++) = {.name = name, .value = value ? 1.0 : 0.0, .is_flag = true};
  }
  void add(std::string_view /*name*/, const std::tuple<double, double>& betas) {
    add("beta1", std::get<0>(betas));
    add("beta2", std::get<1>(betas));
  }

  std::array<Number, 8> numbers_{};  // RMSprop, which has the most fields, has seven
  std::size_t count_ = 0;
};

std::string text_of(const Numbers::Number& number) {
  return number.is_flag ? fmt::format("{}", number.value != 0) : fmt::format("{}", number.value);
}

/// Calls `body` with the kind of optimizer that has these options, LBFGS excepted; false if none is known.
template <class Body>
bool with_kind_of(const OptimizerOptions& options, Body&& body) {
  bool is_known = false;
  with_optimizer_kind(
      [&]<class Kind>(const Kind& /*kind*/) { return typeid(options) == typeid(typename Kind::Options); },
      [&]<class Kind>(const Kind& kind) {
        if constexpr (!std::is_same_v<typename Kind::Optimizer, torch::optim::LBFGS>) {
          is_known = true;
          body(kind, static_cast<const typename Kind::Options&>(options));
        }
      });
  return is_known;
}

std::optional<Numbers> numbers_of(const OptimizerOptions& options) {
  std::optional<Numbers> numbers;
  with_kind_of(options, [&](const auto& /*kind*/, const auto& known) { numbers.emplace(known); });
  return numbers;
}

/// Calls `body` with each tensor of a parameter's state. That is not of State if a user's own class keeps another one.
template <class State, class Body>
void each_tensor(const OptimizerParamState& state, Body&& body) {
  if (typeid(state) != typeid(State)) return;
  each_field(static_cast<const State&>(state), [&](std::string_view /*name*/, const auto& field) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, at::Tensor>) body(field);
  });
}

void refuse_unknown(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw CaptureError(CaptureRefusal::unsupported_call, "torch::optim::LBFGS",
                       "its step calls a closure as often as values demand that the host reads",
                       {"use another optimizer, or call its step outside of the captured step"});
  }
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = group.options();
    if (numbers_of(options)) continue;
    throw CaptureError(CaptureRefusal::unsupported_call,
                       fmt::format("an optimizer with options of class {}", typeid(options).name()),
                       "its hyper-parameters are not known, so that nothing would notice when they change",
                       {"derive the optimizer from cohort::Watchable as well, and describe them in a snapshot"});
  }
}

class OptimizerSnapshot final : public WatchSnapshot {
 public:
  explicit OptimizerSnapshot(const Optimizer& optimizer)
      : optimizer_(optimizer), reads_rates_(reads_rates_in_replays(optimizer)), groups_(optimizer.param_groups()) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      numbers_.push_back(*numbers_of(groups_[i].options()));
      const auto& parameters = groups_[i].params();
      for (std::size_t j = 0; j < parameters.size(); ++j) {
        if (!parameters[j].defined() || !seen.insert(parameters[j].unsafeGetTensorImpl()).second) continue;
        parameters_.push_back({.name = fmt::format("parameter {}{}", j, of_group(i)), .tensor = parameters[j]});
      }
    }
    each_state_tensor([this](const at::Tensor& tensor) {
      state_.push_back(tensor);
      return true;
    });
  }

  std::optional<std::string> change() const override {
    const auto& now = optimizer_.param_groups();
    if (now.size() != groups_.size()) {
      return fmt::format("the optimizer had {} parameter groups and has {}", groups_.size(), now.size());
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (auto text = parameter_change(i, now[i].params())) return text;
      if (auto text = number_change(i, now[i].options())) return text;
    }
    if (!has_its_state()) return "the optimizer's state was loaded, or replaced in another way";
    return std::nullopt;
  }
  const std::vector<WatchedTensor>& parameters() const override { return parameters_; }

 private:
  std::string of_group(std::size_t group) const {
    return groups_.size() == 1 ? "" : fmt::format(" of parameter group {}", group);
  }
  std::optional<std::string> parameter_change(std::size_t group, const std::vector<at::Tensor>& now) const {
    const auto& then = groups_[group].params();
    if (now.size() != then.size()) {
      return fmt::format("the optimizer had {} parameters{} and has {}", then.size(), of_group(group), now.size());
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (!now[i].is_same(then[i])) {
        return fmt::format("parameter {}{} of the optimizer is another tensor", i, of_group(group));
      }
    }
    return std::nullopt;
  }
  std::optional<std::string> number_change(std::size_t group, const OptimizerOptions& options) const {
    const auto now = numbers_of(options);
    const auto& then = numbers_[group];
    if (!now || now->end() - now->begin() != then.end() - then.begin()) {
      return fmt::format("the options{} are of another class", of_group(group));
    }
    for (const auto *was = then.begin(), *is = now->begin(); was != then.end(); ++was, ++is) {
      if (*was == *is) continue;
      const bool is_rate = was->name == "lr";
      if (is_rate && reads_rates_) continue;
      return fmt::format("{}{} was {} and is {}{}", was->name, of_group(group), text_of(*was), text_of(*is),
                         is_rate ? " (cohort::optim takes it at each replay)" : "");
    }
    return std::nullopt;
  }

  /// Calls `body` until it returns false; the tensors are in the same order as long as nothing is replaced.
  template <class Body>
  void each_state_tensor(Body&& body) const {
    if (groups_.empty()) return;
    const auto* const zero = dynamic_cast<const ZeroOptimizerBase*>(&optimizer_);
    const auto& states = (zero != nullptr ? zero->local_optimizer() : optimizer_).state();
    with_kind_of(groups_.front().options(), [&]<class Kind>(const Kind& /*kind*/, const auto& /*options*/) {
      bool goes_on = true;
      for (const auto& [key, state] : states) {
        each_tensor<typename Kind::State>(*state, [&](const at::Tensor& tensor) { goes_on = goes_on && body(tensor); });
        if (!goes_on) return;
      }
    });
  }
  bool has_its_state() const {
    std::size_t count = 0;
    bool is_same = true;
    each_state_tensor([&](const at::Tensor& tensor) {
      is_same = count < state_.size() && tensor.is_same(state_[count]);
      ++count;
      return is_same;
    });
    return is_same && count == state_.size();
  }

  const Optimizer& optimizer_;
  const bool reads_rates_;
  const std::vector<torch::optim::OptimizerParamGroup> groups_;  ///< copies; they keep the tensors alive
  std::vector<Numbers> numbers_;
  std::vector<WatchedTensor> parameters_;
  std::vector<at::Tensor> state_;
};

}  // namespace

std::unique_ptr<WatchSnapshot> snapshot_of(const Optimizer& optimizer) {
  if (const auto* const own = dynamic_cast<const Watchable*>(&optimizer)) return own->watch_snapshot();
  refuse_unknown(optimizer);
  return std::make_unique<OptimizerSnapshot>(optimizer);
}

}  // namespace cohort::recording
