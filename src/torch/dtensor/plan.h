// SPDX-License-Identifier: BSD-3-Clause
//
// Which steps bring a tensor from one list of placements to another. Pure functions: they do not communicate and do not
// know this rank's place in the mesh, so all ranks find the same steps.
//
// The mesh dimensions that shard the same tensor dimension are nested, the later inside the earlier ones. So a mesh
// dimension can begin or cease to shard a tensor dimension only while no later mesh dimension shards it too:
//
// ```text
//   [S(0), S(0)] -> [R, S(0)] on 2 x 2       cost     the part of the tensor that a rank holds afterwards
//   mesh dimension 1: S(0) -> R              2 / 2    a half
//   mesh dimension 0: S(0) -> R              2 / 1    all
//   mesh dimension 1: R -> S(0)              0        a half
// ```
//
// A step costs 4 for an all-reduce, 2 for an all-gather or a reduce-scatter, 1 for an all-to-all and nothing for what a
// rank does alone, each times the part of the tensor that a rank holds on the larger side of the step. The plan is the
// cheapest sequence in which every mesh dimension holds its source, its target or Replicate: for the same price the one
// with the fewest collectives, then with the fewest steps. It differs from walking the mesh dimensions in a fixed order
// where a rank can drop what it does not need before others send, for example
//
// ```text
//   [P(sum), R] -> [R, S(0)] on 2 x 2        cost     in a fixed order
//   mesh dimension 1: R -> S(0)              0        after the all-reduce
//   mesh dimension 0: P(sum) -> R            4 / 2    4 / 1
// ```
#pragma once

#include <c10/util/ArrayRef.h>
#include <cohort/torch/placement.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace cohort::dtensor {

/// That a mesh dimension shards a tensor dimension.
struct Cut {
  std::int64_t mesh_dim;
  Placement shard;
  bool operator==(const Cut&) const = default;
};

struct Transition {
  std::int64_t mesh_dim;
  Placement from;
  Placement to;
  /// If `from` is a shard: the other mesh dimensions that shard the same tensor dimension at this step. The size that
  /// the dimension has without the sharding by `mesh_dim` is the global size, cut by these in their order.
  std::vector<Cut> cuts{};
  bool operator==(const Transition&) const = default;
};

/// Whether the order does not matter in which two mesh dimensions are reduced. Otherwise a tensor that is Partial on
/// both is reduced from the last to the first.
bool commute(Placement::Reduction a, Placement::Reduction b);

/// The steps, in order; none for mesh dimensions of one rank.
using Plan = std::vector<Transition>;

/// Whether each dimension is divided without remainder, and so into equal parts, by all the mesh dimensions together
/// that shard it before or after. A strided shard then is the same as sharding the mesh dimensions from the last to the
/// first.
bool divides_evenly(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape, c10::IntArrayRef sizes);

/// Throws Error for targets that cannot be reached: Partial from anything but the same Partial, except that
/// Partial("sum") can be reached from Replicate.
Plan make_plan(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape, bool is_even);

/// The same, and remembers plans: each thread keeps the last ones, at most 128. A look-up takes some 70 ns.
std::shared_ptr<const Plan> plan(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape,
                                 c10::IntArrayRef sizes);

/// The cost of a plan as above, in units of the whole tensor.
double cost_of(const Plan& plan, const Placements& from, c10::IntArrayRef mesh_shape);

}  // namespace cohort::dtensor
