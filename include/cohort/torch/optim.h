// SPDX-License-Identifier: BSD-3-Clause
//
// Optimizers for steps that are captured (capture.h) or taken in backward (optimizer_in_backward.h), and for every
// other use. SGD, Adam, AdamW, Adagrad and RMSprop are libtorch's, with their options, groups and state, and step to
// the same bits; Adadelta, Adamax and Rprop are PyTorch's, which libtorch does not have in C++:
//
//   cohort::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
//   optimizer.zero_grad();                                          // no gradients; zero_grad(false): gradients of zero
//   loss_of(ddp.forward(x)).backward();
//   optimizer.step();
//
// libtorch's own would compute with the learning rate and the bias correction of the recorded step in every replay.
// These say which numbers change: the learning rate is read from param_groups() and the step counts go on in each
// replay, so a schedule (lr_schedule.h) or a program sets a learning rate between two replays as it always does,
// without a new recording. All other options (weight decay, betas, momentum) are the step's own and are guarded: when
// they change, the step is recorded again.
//
// Groups have their own options, as in libtorch:
//
//   std::vector<torch::optim::OptimizerParamGroup> groups;
//   groups.emplace_back(std::vector<torch::Tensor>{weight});
//   groups.emplace_back(my_shard, std::make_unique<torch::optim::SGDOptions>(0.05));
//   cohort::optim::SGD grouped(std::move(groups), torch::optim::SGDOptions(0.1).momentum(0.9));
//
// Wherever libtorch's optimizers are taken, these are: GradScaler, ZeroOptimizer<cohort::optim::AdamW>, Checkpoint,
// torch::save. What was saved with one is loaded by the other. Parameters may be distributed tensors (dtensor.h).
//
// SGD takes sparse gradients, though not with weight decay; the others do not. What cannot be stepped is a ValueError,
// before anything has changed. Parameters without a gradient are left as they are.
//
// A captured step refers to its optimizer, which must stay alive and where it is. If its state is replaced (load,
// Checkpoint::load), a step that watches the optimizer is recorded again; a replay of one that does not is an Error
// instead of a step with the old state.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <torch/arg.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace cohort::optim {

/// Marks optimizers of which each replay reads the learning rates anew, so that they are no guard of a recording.
class COHORT_API ReadsRatesInReplays {
 public:
  virtual ~ReadsRatesInReplays() = default;
};

/// Gradients become undefined, or zero in the memory that they have.
COHORT_API void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none = true);

class COHORT_API SGD : public torch::optim::SGD, public ReadsRatesInReplays {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override;
  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }
};

class COHORT_API Adam : public torch::optim::Adam, public ReadsRatesInReplays {
 public:
  using torch::optim::Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override;
  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }
};

class COHORT_API AdamW : public torch::optim::AdamW, public ReadsRatesInReplays {
 public:
  using torch::optim::AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override;
  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }
};

class COHORT_API Adagrad : public torch::optim::Adagrad, public ReadsRatesInReplays {
 public:
  using torch::optim::Adagrad::Adagrad;
  at::Tensor step(LossClosure closure = nullptr) override;
  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }
};

class COHORT_API RMSprop : public torch::optim::RMSprop, public ReadsRatesInReplays {
 public:
  using torch::optim::RMSprop::RMSprop;
  at::Tensor step(LossClosure closure = nullptr) override;
  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }
};

// --- those that libtorch does not have in C++, with the rules and defaults of PyTorch's -------------------------------

/// What their options have in common. They are changed and saved as those of libtorch's.
template <class Options>
class COHORT_API OwnOptions : public torch::optim::OptimizerCloneableOptions<Options> {
 public:
  double get_lr() const override;
  void set_lr(double lr) override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

template <class State>
class COHORT_API OwnState : public torch::optim::OptimizerCloneableParamState<State> {
 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// An option that cannot be is a ValueError that names it.
template <class OptionsClass, class StateClass>
class COHORT_API OwnOptimizer : public torch::optim::Optimizer, public ReadsRatesInReplays {
 public:
  using Options = OptionsClass;
  using State = StateClass;

  explicit OwnOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults = {});
  explicit OwnOptimizer(std::vector<at::Tensor> parameters, Options defaults = {});
  at::Tensor step(LossClosure closure = nullptr) override;
  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

struct COHORT_API AdadeltaOptions : OwnOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;
};
struct COHORT_API AdadeltaParamState : OwnState<AdadeltaParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(at::Tensor, square_avg);
  TORCH_ARG(at::Tensor, acc_delta);
};
/// Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
using Adadelta = OwnOptimizer<AdadeltaOptions, AdadeltaParamState>;

struct COHORT_API AdamaxOptions : OwnOptions<AdamaxOptions> {
  AdamaxOptions(double lr = 2e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
};
struct COHORT_API AdamaxParamState : OwnState<AdamaxParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_inf);
};
/// Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, section 7.
using Adamax = OwnOptimizer<AdamaxOptions, AdamaxParamState>;

struct COHORT_API RpropOptions : OwnOptions<RpropOptions> {
  RpropOptions(double lr = 1e-2) : lr_(lr) {}
  TORCH_ARG(double, lr);  ///< of the first step
  TORCH_ARG(double, eta_minus) = 0.5;
  TORCH_ARG(double, eta_plus) = 1.2;
  TORCH_ARG(double, step_min) = 1e-6;
  TORCH_ARG(double, step_max) = 50;
};
struct COHORT_API RpropParamState : OwnState<RpropParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(at::Tensor, prev);
  TORCH_ARG(at::Tensor, step_size);
};
/// Riedmiller, Braun, "A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP Algorithm", 1993.
using Rprop = OwnOptimizer<RpropOptions, RpropParamState>;

extern template class OwnOptions<AdadeltaOptions>;
extern template class OwnOptions<AdamaxOptions>;
extern template class OwnOptions<RpropOptions>;
extern template class OwnState<AdadeltaParamState>;
extern template class OwnState<AdamaxParamState>;
extern template class OwnState<RpropParamState>;
extern template class OwnOptimizer<AdadeltaOptions, AdadeltaParamState>;
extern template class OwnOptimizer<AdamaxOptions, AdamaxParamState>;
extern template class OwnOptimizer<RpropOptions, RpropParamState>;

}  // namespace cohort::optim
