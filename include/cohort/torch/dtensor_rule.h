// SPDX-License-Identifier: BSD-3-Clause
//
// Rules for operators of your own on distributed tensors. A rule lists, for one dimension of a mesh, how the arguments
// may lie so that the operator can run on the local parts, and how the result lies then. For an operator scale(x, rows)
// that multiplies each row of a matrix by a number:
//
//   cohort::register_dtensor_rule("mine::scale", {
//       .strategies = [](const cohort::RuleCall& call) -> std::vector<cohort::ShardingStrategy> {
//         return {{.arguments = {cohort::Shard(0), cohort::Shard(0)}, .results = {cohort::Shard(0)}},      // by rows
//                 {.arguments = {cohort::Shard(1), cohort::Replicate()}, .results = {cohort::Shard(1)}},   // by columns
//                 {.arguments = {cohort::Partial(), cohort::Replicate()}, .results = {cohort::Partial()}}};
//       },
//       .result_sizes = [](const cohort::RuleCall& call) -> std::vector<std::vector<std::int64_t>> {
//         return {call.sizes[0]};
//       }});
//
// For each mesh dimension, the strategy that fits the arguments as they lie is chosen, or else the one whose
// redistributions move the fewest bytes. That everything is replicated is always possible and need not be listed. The
// operator then runs on the local parts with its other arguments unchanged. Gradients are those of the operator's own
// autograd formula, whose operators need rules as well.
#pragma once

#include <ATen/core/ivalue.h>
#include <cohort/export.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/placement.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cohort {

struct ShardingStrategy {
  Placements arguments;  ///< one for each tensor among the arguments, those in lists included
  Placements results;    ///< one for each tensor that is returned
};

/// What a rule may look at.
struct RuleCall {
  std::vector<std::vector<std::int64_t>> sizes;  ///< the global sizes of the tensors among the arguments
  std::vector<c10::IValue> arguments;            ///< all arguments, in order; the tensors are distributed ones
  DeviceMesh mesh;
};

struct DTensorRule {
  std::function<std::vector<ShardingStrategy>(const RuleCall&)> strategies;
  /// The global sizes of the results.
  std::function<std::vector<std::vector<std::int64_t>>(const RuleCall&)> result_sizes;
};

/// `op` is the full name, with the overload ("mine::scale", "mine::scale.out"). For the whole process, and for good. Throws
/// ValueError if the operator has a rule already.
COHORT_API void register_dtensor_rule(std::string op, DTensorRule rule);

}  // namespace cohort
