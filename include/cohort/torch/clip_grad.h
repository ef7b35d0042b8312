// SPDX-License-Identifier: BSD-3-Clause
//
// Clips gradients by the norm of all of them together:
//
//   cohort::clip_grad_norm_(ddp.parameters(), 1.0);                       // between backward and step
//   cohort::clip_grad_norm_(my_shard, 1.0, {.norm_type = 2, .process_group = pg});
//
// With DistributedDataParallel all ranks have the same gradients, so no group is needed and nothing is sent. If each
// rank has different parameters (a sharded model), a group makes it the norm of all ranks' gradients together, so that
// all ranks scale by the same factor: (sum of norm^p over the ranks)^(1/p), or the largest norm if p is infinity.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>

#include <vector>

namespace cohort {

struct ClipGradOptions {
  /// 1, 2, ..., or infinity.
  double norm_type = 2;
  /// A norm that is infinite or NaN is an Error, and the gradients are left as they are.
  bool error_if_nonfinite = false;
  /// Null: the norm of this rank's gradients alone. Otherwise the call is collective, also for ranks without gradients.
  ProcessGroupPtr process_group{};
};

/// Scales the gradients down if their norm is above max_norm, and returns the norm before that, as a tensor of one
/// element. Parameters without a gradient are left out; a parameter that is listed twice (a tied weight) counts once.
COHORT_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                      const ClipGradOptions& options = {});

}  // namespace cohort
