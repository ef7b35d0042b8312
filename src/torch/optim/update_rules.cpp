// SPDX-License-Identifier: BSD-3-Clause
#include "torch/optim/update_rules.h"

#include <ATen/ATen.h>
#include <cohort/torch/capture_host.h>

#include <cmath>

namespace cohort {

at::Tensor decayed(const at::Tensor& gradient, const at::Tensor& parameter, double weight_decay) {
  return weight_decay == 0 ? gradient : gradient.add(parameter, weight_decay);
}

void sgd_update(const SgdRule& rule, at::Tensor& momentum, const at::Tensor& parameter, const at::Tensor& gradient,
                const std::function<c10::Scalar()>& minus_lr) {
  auto change = decayed(gradient, parameter, rule.weight_decay);
  if (rule.momentum != 0) {
    if (momentum.defined()) {
      momentum.mul_(rule.momentum).add_(change, 1 - rule.dampening);
    } else {
      momentum = change.clone();
    }
    change = rule.nesterov ? change.add(momentum, rule.momentum) : momentum;
  }
  const HostArgument alpha("alpha", minus_lr);
  parameter.add_(change, alpha.value());
}

void AdamMoments::make(const AdamRule& rule, const at::Tensor& parameter) const {
  for (auto* const each : {&mean, &square, &largest_square}) {
    if (each->defined() || (each == &largest_square && !rule.amsgrad)) continue;
    *each = at::zeros_like(parameter, at::MemoryFormat::Preserve);
  }
}

AdamNumbers::AdamNumbers(const AdamRule& rule, double lr, std::int64_t step)
    : kept_weight(1 - lr * rule.weight_decay),
      root_of_correction(std::sqrt(1 - std::pow(rule.beta2, static_cast<double>(step)))),
      minus_step_size(-(lr / (1 - std::pow(rule.beta1, static_cast<double>(step))))) {}

void adam_update(const AdamRule& rule, const AdamMoments& moments, const at::Tensor& parameter,
                 const at::Tensor& gradient, const std::shared_ptr<const AdamNumbers>& numbers) {
  moments.make(rule, parameter);
  auto change = gradient;
  if (rule.decoupled && rule.weight_decay != 0) {
    const HostArgument kept("other", [numbers] { return c10::Scalar(numbers->kept_weight); });
    parameter.mul_(kept.value());
  } else {
    change = decayed(gradient, parameter, rule.weight_decay);
  }
  moments.mean.mul_(rule.beta1).add_(change, 1 - rule.beta1);
  moments.square.mul_(rule.beta2).addcmul_(change, change, 1 - rule.beta2);
  auto square = moments.square;
  if (rule.amsgrad) {
    square = moments.largest_square;
    at::maximum_out(square, moments.square, square);
  }
  auto denominator = square.sqrt();
  {
    const HostArgument root("other", [numbers] { return c10::Scalar(numbers->root_of_correction); });
    denominator = denominator.div(root.value());
  }
  denominator.add_(rule.eps);
  const HostArgument value("value", [numbers] { return c10::Scalar(numbers->minus_step_size); });
  parameter.addcdiv_(moments.mean, denominator, value.value());
}

}  // namespace cohort
