// SPDX-License-Identifier: BSD-3-Clause
//
// Which parameters an OptimizerInBackward steps, and when: as soon as their gradient is accumulated, unless it has to
// be averaged first. Whoever averages it steps them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace cohort::in_backward {

bool is_stepped(const at::Tensor& parameter);

/// Those that step some of these parameters.
std::vector<const torch::optim::Optimizer*> optimizers_of(std::span<const at::Tensor> parameters);

/// How often an optimizer was attached or detached so far.
std::uint64_t changes() noexcept;

/// Steps those of the parameters that an OptimizerInBackward steps and that have a gradient, and drops their gradients
/// unless they are kept.
void step(std::span<const at::Tensor> parameters);

/// While it exists, gradients of these parameters are averaged, and only step() steps them.
class Averaged {
 public:
  explicit Averaged(std::vector<at::Tensor> parameters);
  ~Averaged();
  Averaged(const Averaged&) = delete;
  Averaged& operator=(const Averaged&) = delete;

 private:
  const std::vector<at::Tensor> parameters_;
};

}  // namespace cohort::in_backward
