// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/optim.h>
#include <cohort/torch/zero_optimizer.h>

namespace cohort {

/// Whether a replay of the optimizer's step reads the learning rates anew, so that they need no guard.
inline bool reads_rates_in_replays(const torch::optim::Optimizer& optimizer) {
  if (const auto* const zero = dynamic_cast<const ZeroOptimizerBase*>(&optimizer)) {
    return reads_rates_in_replays(zero->local_optimizer());
  }
  return dynamic_cast<const optim::ReadsRatesInReplays*>(&optimizer) != nullptr;
}

}  // namespace cohort
