// SPDX-License-Identifier: BSD-3-Clause
//
// The state of libtorch's optimizers as named tensors and values. libtorch itself writes it into archives alone, whose
// loader executes what is in them, and does not read the options of a group back; so this walks the fields of the
// classes that libtorch has.
//
//   class                       "Adam", "SGD", ...
//   shapes                      the shapes of all parameters, by which another order or another model is noticed
//   groups.0.lr, ...            the options of each group
//   state.3.exp_avg, ...        the state of the parameter of this number, counted over all groups
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/state_dict.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

/// A CheckpointError that names the class, unless it is one of libtorch's or of cohort::optim, which have the same
/// state. Another class that is derived from one of them may have more state than can be seen.
void require_known_optimizer(const torch::optim::Optimizer& optimizer);

/// The groups are those of `optimizer`, the states those of `holder`, which has the same parameters or some of them.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer, const torch::optim::Optimizer& holder);

/// Finds the parameter that a key belongs to, which its tensors are like: that of number 3 for "state.3.exp_avg".
/// Undefined for other keys.
std::function<at::Tensor(const std::string& key)> parameters_by_key(const torch::optim::Optimizer& optimizer);

/// A CheckpointError if the state belongs to another class or to other parameters.
void check_optimizer_state(const torch::optim::Optimizer& optimizer, const StateDict& state);

/// What is in a StateDict, checked and on the devices of the parameters, to be put into an optimizer.
class LoadedOptimizerState {
 public:
  /// `wanted`: the parameters whose state is taken; all if it is empty.
  LoadedOptimizerState(const torch::optim::Optimizer& optimizer, const StateDict& state,
                       const std::function<bool(const at::Tensor&)>& wanted = {});
  /// Replaces the options in the groups of one and all state of the other, which may be the same.
  void install(torch::optim::Optimizer& groups, torch::optim::Optimizer& holder);

 private:
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  std::vector<std::pair<at::Tensor, std::unique_ptr<torch::optim::OptimizerParamState>>> states_;
};

}  // namespace cohort
