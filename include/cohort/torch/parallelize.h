// SPDX-License-Identifier: BSD-3-Clause
//
// Tensor parallelism: the parameters of a module become distributed tensors, by a plan of module names.
//
//   auto mesh = cohort::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
//   cohort::parallelize_module(*net, mesh["tp"], {
//       {"blocks.*.query_key_value", cohort::ColwiseParallel()},     // heads are shared out
//       {"blocks.*.mix", cohort::RowwiseParallel()},
//       {"blocks.*.widen", cohort::ColwiseParallel()},
//       {"blocks.*.narrow", cohort::RowwiseParallel()},
//   });
//   auto x = cohort::distribute_tensor(tokens, mesh["tp"]);          // replicated
//   auto y = net->forward(x);                                        // the module's own forward, on distributed tensors
//
// A linear layer computes x W^T + b. Column-parallel, every rank holds some of the columns of W^T, that is of the
// outputs: its result is sharded in the last dimension. Row-parallel, every rank holds some of the inputs: its result
// is Partial, and the next operator that needs its values sums them up. In between, activations, attention heads and
// dropout work on their part. So one pair costs one all-reduce forward, and one backward.
//
// Modules of libtorch have no hooks around forward, so where the result should lie otherwise a model says so itself,
// with constrain() (dtensor.h): in sequence parallelism, constrain(x, {Shard(1)}) after a row-parallel layer makes the
// sum a reduce-scatter, and the norm that follows works on a part of the sequence.
//
// Buffers stay plain tensors, which count as replicated within an ImplicitReplication (dtensor.h).
//
// Make optimizers afterwards: the parameters are other tensors then. For copies of the model that train on different
// data, either DistributedDataParallel with {.device_mesh = mesh["dp"]}, which averages the ranks' parts in buckets
// while backward computes; or give distribute_module a mesh with a dimension for the copies, on which parameters are
// replicated and the batch is sharded (docs/dtensor.md).
#pragma once

#include <cohort/export.h>
#include <cohort/torch/dtensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

/// How the parameters of one module are placed, by its type.
enum class ParallelStyle {
  colwise,    ///< Linear: weight S(0), bias S(0). Embedding: weight S(1)
  rowwise,    ///< Linear: weight S(1), bias R. Embedding: weight S(0)
  replicate,  ///< everything R; what modules get that the plan does not name. Also for norms on sharded sequences
};
inline ParallelStyle ColwiseParallel() {
  return ParallelStyle::colwise;
}
inline ParallelStyle RowwiseParallel() {
  return ParallelStyle::rowwise;
}
inline ParallelStyle SequenceParallel() {
  return ParallelStyle::replicate;
}

/// Names of modules, as named_modules() has them, with the style for each. "*" stands for any one part of a name
/// between dots, and "" for the module itself. The first entry that matches counts.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

struct ParallelizeOptions {
  /// Tensors that a module of your own keeps as members besides registering them (weight_ = register_parameter(...)):
  /// the library knows the members of libtorch's modules but not those.
  std::vector<at::Tensor*> members{};
  DistributeOptions distribute{};
};

/// Replaces all parameters of the module by distributed ones, as the plan says and otherwise replicated, with
/// the values of the mesh's first rank. The mesh has one dimension. Nothing is changed if it throws: ValueError if an
/// entry of the plan matches no module, or one that has no such style; Error if the module is distributed already, or
/// if a member cannot be reached (see ParallelizeOptions).
COHORT_API void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan = {},
                                   const ParallelizeOptions& options = {});

/// Distributes a module parameter by parameter: `partition` gets the full name and the tensor of each parameter and
/// returns its placements; empty ones are Replicate, as is everything without a function. Throws as
/// parallelize_module does.
COHORT_API void distribute_module(
    torch::nn::Module& module, const DeviceMesh& mesh,
    const std::function<Placements(const std::string& name, const at::Tensor& tensor)>& partition = {},
    const ParallelizeOptions& options = {});

}  // namespace cohort
