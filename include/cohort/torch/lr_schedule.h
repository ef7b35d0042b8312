// SPDX-License-Identifier: BSD-3-Clause
//
// Learning-rate schedules: libtorch's schedulers whose step() counts in replays of a captured step (capture.h) too, so
// it may be called inside of the step or after it.
//
//   using namespace cohort::optim;
//   AdamW optimizer(ddp.parameters());
//   LambdaLR schedule(optimizer, warm_up(500, cosine(20'000, 0.1)));
//   schedule.step();                                                // after each optimizer.step()
//
//   LambdaLR decay(optimizer, [](std::int64_t step) { return 1 / (1 + 0.01 * static_cast<double>(step)); });
//   StepLR drop(optimizer, 1000, 0.5);
//
// They work with any optimizer of libtorch. Checkpoint saves them; they are added to it as schedulers of libtorch are.
#pragma once

#include <cohort/export.h>
#include <cohort/torch/state_dict.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace cohort::optim {

/// libtorch's: the current rates times gamma at the call of step() after each `step_size` calls.
class COHORT_API StepLR : public torch::optim::StepLR {
 public:
  using torch::optim::StepLR::StepLR;
  void step();
};

/// The factor by which a learning rate is multiplied in a step. The first step is number 0.
using LrFactor = std::function<double(std::int64_t step)>;

/// From 1 to `floor` along half a cosine wave in this many steps, and then `floor` (Loshchilov, Hutter, "SGDR:
/// Stochastic Gradient Descent with Warm Restarts", ICLR 2017, without the restarts).
COHORT_API LrFactor cosine(std::int64_t steps, double floor = 0);

/// Rises in equal parts to what `after` begins with, which the last of these steps has; then follows `after`, whose
/// steps begin at 0.
COHORT_API LrFactor warm_up(std::int64_t steps, LrFactor after);

/// The rates that the groups had when the schedule was made, times a factor. The factor of step 0 is set at once, and
/// each step() sets the next one. A group that is added later starts from the rate that it has then.
class COHORT_API LambdaLR : public torch::optim::LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, LrFactor factor);
  void step();

  // For Checkpoint.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 protected:
  std::vector<double> get_lrs() override;

 private:
  LrFactor factor_;
  std::vector<double> full_rates_;
};

}  // namespace cohort::optim
