// SPDX-License-Identifier: BSD-3-Clause
//
// How SGD, Adam and AdamW step one parameter: the operators of libtorch's optimizers in their order, with the same numbers
// in double, so that results have the same bits. Numbers that change from step to step are host arguments
// (capture_host.h), so that a replay of a captured step computes with its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace cohort {

struct SgdRule {
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// `momentum` is made in the first step if the rule needs it. `minus_lr` is called now and in each replay.
void sgd_update(const SgdRule& rule, at::Tensor& momentum, const at::Tensor& parameter, const at::Tensor& gradient,
                const std::function<c10::Scalar()>& minus_lr);

struct AdamRule {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  /// AdamW: the weight decays by itself instead of through the gradient.
  bool decoupled = false;
};

/// The moments of a parameter. Those that are undefined and needed are made as zeros.
struct AdamMoments {
  at::Tensor& mean;
  at::Tensor& square;
  at::Tensor& largest_square;  ///< with amsgrad only

  void make(const AdamRule& rule, const at::Tensor& parameter) const;
};

/// The numbers of one step.
struct AdamNumbers {
  double kept_weight = 1;         ///< what the weight is multiplied by if its decay is decoupled
  double root_of_correction = 1;  ///< of the square moment's bias
  double minus_step_size = 0;

  /// `step` counts from 1.
  AdamNumbers(const AdamRule& rule, double lr, std::int64_t step);
  AdamNumbers() = default;
};

/// The caller keeps `numbers` at those of the step, in replays as well, by on_host().
void adam_update(const AdamRule& rule, const AdamMoments& moments, const at::Tensor& parameter,
                 const at::Tensor& gradient, const std::shared_ptr<const AdamNumbers>& numbers);

/// The gradient with what an L2 penalty adds to it.
at::Tensor decayed(const at::Tensor& gradient, const at::Tensor& parameter, double weight_decay);

}  // namespace cohort
