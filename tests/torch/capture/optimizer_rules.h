// SPDX-License-Identifier: BSD-3-Clause
//
// Every optimizer of cohort::optim with several sets of options, beside libtorch's with the same.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/optim.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "torch/bits.h"
#include "torch/optim/optimizer_state.h"

namespace cohort::test {

using Tensors = std::vector<at::Tensor>;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

inline bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return have_same_bits(x, y); });
}

/// Parameters, moments, step counts and options.
inline void expect_same_state(const Optimizer& mine, const Optimizer& theirs) {
  const auto own = optimizer_state_dict(mine, mine);
  const auto expected = optimizer_state_dict(theirs, theirs);
  EXPECT_EQ(own.values(), expected.values());
  ASSERT_EQ(own.tensors().size(), expected.tensors().size());
  for (const auto& [key, tensor] : expected.tensors()) EXPECT_EQ(bits_of(own.tensor(key)), bits_of(tensor)) << key;
}

/// One without elements, one whose memory is not in the order of its elements.
inline Tensors some_parameters(at::ScalarType dtype) {
  Tensors all;
  const std::vector<std::vector<std::int64_t>> shapes{{7, 3}, {5}, {1}, {0, 4}, {11, 2}, {4, 3}, {2, 2, 2}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    std::int64_t count = 1;
    for (const auto size : shapes[i]) count *= size;
    auto values = at::sin(at::arange(count, at::kDouble) + static_cast<double>(i)).reshape(shapes[i]).to(dtype);
    if (i == 5) values = values.t().contiguous().t();
    all.push_back(values.clone().set_requires_grad(true));
  }
  return all;
}

/// Adds gradients as a backward does. Parameter 1 has none in every third step, parameter 2 never has one.
inline void add_gradients(Tensors& all, int step) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 2 || (step % 3 == 2 && i == 1)) continue;
    const auto number = static_cast<double>(i);
    const auto gradient = at::cos(all[i].detach() * (number + 1) + step) + 0.1 * number;
    auto& grad = all[i].mutable_grad();
    grad = grad.defined() ? grad.add_(gradient) : gradient;
  }
}

inline void libtorchs_zero_grad(auto& optimizer, bool set_to_none) {
  if constexpr (requires { optimizer.zero_grad(set_to_none); }) {
    optimizer.zero_grad(set_to_none);
  } else if (!set_to_none) {
    optimizer.zero_grad();
  } else {
    for (auto& group : optimizer.param_groups()) {
      for (auto& each : group.params()) each.mutable_grad().reset();
    }
  }
}

/// An optimizer and the parameters that it steps, the first four and the others in groups of their own.
struct Trainee {
  Tensors parameters;
  std::unique_ptr<Optimizer> optimizer;

  std::vector<OptimizerParamGroup> groups(const OptimizerOptions* second) const {
    std::vector<OptimizerParamGroup> result;
    if (second == nullptr) {
      result.emplace_back(parameters);
      return result;
    }
    result.emplace_back(Tensors(parameters.begin(), parameters.begin() + 4));
    result.emplace_back(Tensors(parameters.begin() + 4, parameters.end()), second->clone());
    return result;
  }

  template <class Schedule>
  void train(int from, int to, bool set_to_none, Schedule&& schedule) {
    for (int step = from; step < to; ++step) {
      if (step == 20) optimizer->param_groups().back().options().set_lr(0.003);
      if (dynamic_cast<optim::ReadsRatesInReplays*>(optimizer.get()) != nullptr) {
        optim::zero_grad(*optimizer, set_to_none);
      } else {
        libtorchs_zero_grad(*optimizer, set_to_none);
      }
      add_gradients(parameters, step);
      optimizer->step();
      schedule.step();
    }
  }
};

struct Rule {
  std::string name;
  std::function<Trainee(bool is_mine, at::ScalarType dtype)> make;
};
inline std::ostream& operator<<(std::ostream& out, const Rule& rule) {
  return out << rule.name;
}

template <class Mine, class Theirs, class Options>
Rule rule(std::string name, Options options, std::unique_ptr<Options> second = nullptr) {
  const std::shared_ptr<Options> other(std::move(second));
  return {std::move(name), [=](bool is_mine, at::ScalarType dtype) {
            Trainee result{.parameters = some_parameters(dtype), .optimizer = nullptr};
            auto groups = result.groups(other.get());
            if (is_mine) {
              result.optimizer = std::make_unique<Mine>(std::move(groups), options);
            } else {
              result.optimizer = std::make_unique<Theirs>(std::move(groups), options);
            }
            return result;
          }};
}
inline Rule sgd(std::string name, SGDOptions options, std::unique_ptr<SGDOptions> second = nullptr) {
  return rule<optim::SGD, torch::optim::SGD>(std::move(name), options, std::move(second));
}
inline Rule adam(std::string name, AdamOptions options, std::unique_ptr<AdamOptions> second = nullptr) {
  return rule<optim::Adam, torch::optim::Adam>(std::move(name), options, std::move(second));
}
inline Rule adamw(std::string name, AdamWOptions options, std::unique_ptr<AdamWOptions> second = nullptr) {
  return rule<optim::AdamW, torch::optim::AdamW>(std::move(name), options, std::move(second));
}

inline Rule adagrad(std::string name, torch::optim::AdagradOptions options) {
  return rule<optim::Adagrad, torch::optim::Adagrad>(std::move(name), std::move(options));
}
inline Rule rmsprop(std::string name, torch::optim::RMSpropOptions options) {
  return rule<optim::RMSprop, torch::optim::RMSprop>(std::move(name), std::move(options));
}

inline std::vector<Rule> all_rules() {
  using torch::optim::AdagradOptions;
  using torch::optim::RMSpropOptions;
  return {
      sgd("Sgd", 0.1),
      sgd("SgdMomentum", SGDOptions(0.1).momentum(0.9)),
      sgd("SgdDampened", SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01)),
      sgd("SgdNesterov", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.02)),
      sgd("SgdWeightDecay", SGDOptions(0.05).weight_decay(0.1)),
      sgd("SgdGroups", SGDOptions(0.1).momentum(0.9), std::make_unique<SGDOptions>(SGDOptions(0.02).weight_decay(0.1))),
      adam("Adam", 0.01),
      adam("AdamBetas", AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-3).weight_decay(0.1)),
      adam("AdamAmsgrad", AdamOptions(0.01).amsgrad(true).weight_decay(0.01)),
      adam("AdamGroups", 0.01, std::make_unique<AdamOptions>(AdamOptions(0.02).betas({0.5, 0.9}).amsgrad(true))),
      adamw("AdamW", 0.01),
      adamw("AdamWPlain", AdamWOptions(0.01).weight_decay(0)),
      adamw("AdamWAmsgrad", AdamWOptions(0.01).amsgrad(true).weight_decay(0.2)),
      adamw("AdamWGroups", AdamWOptions(0.01).weight_decay(0.1),
            std::make_unique<AdamWOptions>(AdamWOptions(0.05).weight_decay(0))),
      adagrad("Adagrad", AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.02).initial_accumulator_value(0.3)),
      rmsprop("RMSprop", RMSpropOptions(0.01).alpha(0.9).weight_decay(0.1)),
      rmsprop("RMSpropCentered", RMSpropOptions(0.01).momentum(0.9).centered(true))};
}

}  // namespace cohort::test
