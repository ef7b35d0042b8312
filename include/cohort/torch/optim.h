// SPDX-License-Identifier: BSD-3-Clause
//
// SGD, Adam and AdamW for steps that are captured (capture.h). They are libtorch's optimizers, with their options, groups
// and state, and step to the same bits:
//
//   cohort::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
//   optimizer.zero_grad();                                          // no gradients; zero_grad(false): gradients of zero
//   loss_of(ddp.forward(x)).backward();
//   optimizer.step();
//
// libtorch's own would compute with the learning rate and the bias correction of the recorded step in every replay. These
// say which numbers change: the learning rate is read from param_groups() and the step counts go on in each replay, so a
// schedule (lr_schedule.h) or a program sets a learning rate between two replays as it always does, without a new
// recording. All other options (weight decay, betas, momentum) are the step's own and are guarded: when they change, the
// step is recorded again.
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
// SGD takes sparse gradients, though not with weight decay; Adam and AdamW do not. What cannot be stepped is a ValueError,
// before anything has changed. Parameters without a gradient are left as they are.
//
// A captured step refers to its optimizer, which must stay alive and where it is. If its state is replaced (load,
// Checkpoint::load), a step that watches the optimizer is recorded again; a replay of one that does not is an Error instead
// of a step with the old state.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

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

}  // namespace cohort::optim
