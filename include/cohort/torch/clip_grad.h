// SPDX-License-Identifier: BSD-3-Clause
//
// Clipping by the norm of all gradients together:
//
//   cohort::clip_grad_norm_(ddp.parameters(), 1.0);                       // between backward and step
//   cohort::clip_grad_norm_(my_shard, 1.0, {.norm_type = 2, .group = pg});
//
// With DistributedDataParallel all ranks have the same gradients: no group is needed, and nothing is sent. Where each
// rank has other parameters (a sharded model) the norm is that of all ranks' gradients together, so that all scale by
// the same factor: (sum of norm^p over the ranks)^(1/p), or the largest for the norm infinity.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>

#include <vector>

namespace cohort {

struct ClipGradOptions {
  /// 1, 2, ..., or infinity.
  double norm_type = 2;
  /// An Error instead of gradients multiplied by NaN or zero; nothing is changed then.
  bool error_if_nonfinite = false;
  /// Over whose ranks the norm goes; null: over this rank's gradients alone. Collective, also for ranks without any.
  ProcessGroupPtr group{};
};

/// The norm before clipping, of one element. Gradients of a norm above max_norm are scaled down to it. Parameters
/// without a gradient are left out; one listed twice (a tied weight) counts once.
COHORT_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                      const ClipGradOptions& options = {});

}  // namespace cohort
