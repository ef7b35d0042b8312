// SPDX-License-Identifier: BSD-3-Clause
//
// Clips gradients by the norm of all of them together:
//
//   cohort::clip_grad_norm_(ddp.parameters(), 1.0);                       // between backward and step
//   cohort::clip_grad_norm_(my_shard, 1.0, {.norm_type = 2, .process_group = pg});
//
// With DistributedDataParallel all ranks have the same gradients, so no group is needed and nothing is sent.
//
// Distributed tensors (dtensor.h), and their parts that are the parameters of a wrapped tensor-parallel module, count
// with all their elements: shards are summed over their mesh, replicas count once. That costs one all_reduce of a few
// numbers for each mesh dimension with shards, and nothing is gathered. The ranks of a mesh call it with the same list
// of parameters, which may also contain plain tensors and tensors on several meshes.
//
// If each rank has different plain parameters (a model that is sharded by hand), a group makes it the norm of all
// ranks' gradients together, so that all ranks scale by the same factor: (sum of norm^p over the ranks)^(1/p), or the
// largest norm if p is infinity. A distributed tensor counts once if its mesh has all ranks of the group, and otherwise
// for each rank, as in a pipeline whose stages have meshes of their own.
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
  /// Null: plain gradients are equal on all ranks. Otherwise each rank has others, and the call is collective, also for
  /// ranks without gradients. A ValueError if the mesh of a parameter has some of its ranks, but neither all nor one.
  ProcessGroupPtr process_group{};
};

/// Scales the gradients down if their norm is above max_norm, and returns the norm before that, as a tensor of one
/// element. Parameters without a gradient are left out; a parameter that is listed twice (a tied weight) counts once.
/// An Error on a rank outside the mesh of one of the parameters.
COHORT_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                      const ClipGradOptions& options = {});

}  // namespace cohort
