// SPDX-License-Identifier: BSD-3-Clause
//
// The classes of optimizers whose options and state are known by name (optimizer_fields.h): libtorch's, and those of
// cohort::optim.
#pragma once

#include <cohort/torch/optim.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string_view>
#include <tuple>

namespace cohort {

/// `OwnClass`: that of cohort::optim with the same options and state, if there is one.
template <class OptimizerClass, class OptionsClass, class StateClass, class OwnClass = OptimizerClass>
struct OptimizerKind {
  using Optimizer = OptimizerClass;
  using Own = OwnClass;
  using Options = OptionsClass;
  using State = StateClass;
  std::string_view name;
};

/// Calls `body` with the first kind that `fits`; false if there is none.
template <class Fits, class Body>
bool with_optimizer_kind(Fits&& fits, Body&& body) {
  namespace o = torch::optim;
  static constexpr std::tuple kinds{
      OptimizerKind<o::SGD, o::SGDOptions, o::SGDParamState, optim::SGD>{"SGD"},
      OptimizerKind<o::Adam, o::AdamOptions, o::AdamParamState, optim::Adam>{"Adam"},
      OptimizerKind<o::AdamW, o::AdamWOptions, o::AdamWParamState, optim::AdamW>{"AdamW"},
      OptimizerKind<o::Adagrad, o::AdagradOptions, o::AdagradParamState, optim::Adagrad>{"Adagrad"},
      OptimizerKind<o::RMSprop, o::RMSpropOptions, o::RMSpropParamState, optim::RMSprop>{"RMSprop"},
      OptimizerKind<optim::Adadelta, optim::AdadeltaOptions, optim::AdadeltaParamState>{"Adadelta"},
      OptimizerKind<optim::Adamax, optim::AdamaxOptions, optim::AdamaxParamState>{"Adamax"},
      OptimizerKind<optim::Rprop, optim::RpropOptions, optim::RpropParamState>{"Rprop"},
      OptimizerKind<o::LBFGS, o::LBFGSOptions, o::LBFGSParamState>{"LBFGS"},
  };
  const auto use = [&](const auto& kind) {
    if (!fits(kind)) return false;
    body(kind);
    return true;
  };
  return std::apply([&](const auto&... kind) { return (use(kind) || ...); }, kinds);
}

}  // namespace cohort
