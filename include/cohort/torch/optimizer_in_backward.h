// SPDX-License-Identifier: BSD-3-Clause
//
// Optimizers that step while backward still computes, so that gradients need not all exist at the same time:
//
//   torch::optim::AdamW optimizer(net->parameters(), 1e-3);
//   cohort::OptimizerInBackward in_backward(optimizer);                 // before the module is wrapped, or after that
//   cohort::DistributedDataParallel ddp(net, {.process_group = pg});
//   loss_of(ddp.forward(x)).backward();                                 // the parameters have been stepped
//   optimizer.param_groups()[0].options().set_lr(5e-4);                 // as ever; there is no step() to call
//
// In DistributedDataParallel the parameters of a bucket are stepped together once the bucket is reduced, with the
// averaged gradients. Other parameters are stepped as soon as backward has accumulated their gradient. Either way the
// gradient is dropped then, unless it is to be kept. The parameters become what step() after backward would make of
// them, to the bit.
//
// The optimizer is any of libtorch's but LBFGS, one of optim.h, or one of your own whose step() treats each parameter
// by itself and does not communicate. Several optimizers step parameters of their own. Learning rates and checkpoints
// work as without this. Gradients are accumulated over several backwards with no_sync: parameters are stepped in the
// backward that synchronises.
//
// What needs all gradients at the same time does not work any more: clip_grad_norm_ and GradScaler throw an Error. So
// does a forward of DistributedDataParallel that has a communication hook, mixed_precision, or a ZeRO step. A parameter
// changes while the backward of earlier layers still runs: if the loss also uses it through detach(), that backward is
// autograd's error "modified by an inplace operation". A backward that fails may have stepped some parameters on some
// ranks: load a checkpoint.
#pragma once

#include <cohort/export.h>

#include <memory>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace cohort {

namespace in_backward {
class Stepper;
}  // namespace in_backward

struct OptimizerInBackwardOptions {
  /// Gradients stay after the step, to be looked at; zero them before the next backward, which would add to them.
  bool keep_gradients = false;
};

/// Has the optimizer step in backward as long as it exists. To be made and destroyed between steps, not between a
/// forward and its backward.
class COHORT_API OptimizerInBackward {
 public:
  /// The optimizer must live longer. Of parameters that are given another dtype or device later, attach anew. Throws
  /// ValueError for LBFGS and ZeroOptimizer, and Error if another one steps one of the parameters already.
  explicit OptimizerInBackward(torch::optim::Optimizer& optimizer, OptimizerInBackwardOptions options = {});
  ~OptimizerInBackward();
  OptimizerInBackward(const OptimizerInBackward&) = delete;
  OptimizerInBackward& operator=(const OptimizerInBackward&) = delete;

 private:
  std::shared_ptr<in_backward::Stepper> stepper_;
};

}  // namespace cohort
