// SPDX-License-Identifier: BSD-3-Clause
//
// Optimizers that step one parameter at a time, as soon as its gradient is there, for steps that are fused into
// backward or into a communication hook. Rules and results are those of libtorch's optimizers, and of PyTorch's for
// Adadelta, Adamax and Rprop, which libtorch does not have in C++.
//
//   auto optimizer = cohort::make_functional(cohort::fused::AdamW{.lr = 1e-3});
//   optimizer->step(parameter, gradient);              // changes the parameter; the gradient stays as it is
//   optimizer->set_lr(5e-4);
//
// Each parameter has its own state, which is created at its first step. Different threads may step different parameters
// at the same time. SGD without momentum accepts sparse gradients; for all other optimizers they are a ValueError.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>

#include <memory>
#include <span>
#include <string_view>

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace cohort {

class COHORT_API FunctionalOptimizer {
 public:
  FunctionalOptimizer() = default;
  FunctionalOptimizer(const FunctionalOptimizer&) = delete;
  FunctionalOptimizer& operator=(const FunctionalOptimizer&) = delete;
  virtual ~FunctionalOptimizer() = default;

  /// "SGD", "AdamW", ...
  virtual std::string_view name() const = 0;
  virtual void step(const at::Tensor& parameter, const at::Tensor& gradient) = 0;
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;

  /// Writes and reads the state of these parameters, which are identified by their order.
  virtual void save(torch::serialize::OutputArchive& archive, std::span<const at::Tensor> parameters) const = 0;
  virtual void load(torch::serialize::InputArchive& archive, std::span<const at::Tensor> parameters) = 0;
};
using FunctionalOptimizerPtr = std::shared_ptr<FunctionalOptimizer>;

/// The options of each optimizer, with PyTorch's defaults.
namespace fused {

struct SGD {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};
/// Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
};
/// Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};
/// Duchi, Hazan, Singer, "Adaptive Subgradient Methods", JMLR 2011.
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};
/// Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
struct Adadelta {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
};
/// From the paper of Adam.
struct Adamax {
  double lr = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};
/// Hinton's lecture notes; `centered` as in Graves, "Generating Sequences With Recurrent Neural Networks", 2013.
struct RMSprop {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};
/// Riedmiller, Braun, "A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP Algorithm", 1993.
struct Rprop {
  double lr = 1e-2;
  double eta_minus = 0.5;
  double eta_plus = 1.2;
  double step_min = 1e-6;
  double step_max = 50;
};

}  // namespace fused

/// Invalid values (a negative learning rate, momentum below 0) are a ValueError that names the option.
COHORT_API FunctionalOptimizerPtr make_functional(const fused::SGD& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::Adam& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::AdamW& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::Adagrad& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::Adadelta& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::Adamax& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::RMSprop& options);
COHORT_API FunctionalOptimizerPtr make_functional(const fused::Rprop& options);
/// Chooses the optimizer by name, with default options. An unknown name is a ValueError that lists the known ones.
COHORT_API FunctionalOptimizerPtr make_functional(std::string_view name);

}  // namespace cohort
