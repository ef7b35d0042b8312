// SPDX-License-Identifier: BSD-3-Clause
//
// Performs one step of a plan on this rank's part, with one collective or none:
//
// ```text
//   from -> to        collective       copies besides it
//   S(i) -> R         all-gather       after it, unless dimension i is the outermost (*)
//   S(i) -> S(j)      all-to-all       before it, unless j is the outermost; after it, unless i is the outermost
//   P    -> R         all-reduce       before it: the argument stays as it is
//   P    -> S(i)      reduce-scatter   before it, unless i is the outermost and divided evenly
//   R    -> S(i)      none             none: a view
//   R    -> P(sum)    none             the quotient by the number of ranks
//
//   (*) A dimension is the outermost if those before it have one element: its parts then are consecutive in memory. The
//       all-gather pads parts that are smaller than others, which copies these on the ranks that hold them.
// ```
//
// Results are contiguous, except those of R -> S(i). Parts that are empty on all ranks are not communicated. With
// Completion::async the result is a tensor in flight, and a copy that belongs behind the collective is made at its
// first use.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/placement.h>

#include <cstdint>

#include "torch/functional/on_group.h"

namespace cohort::dtensor {

using functional::Completion;

/// The ranks of `group` are those of a mesh dimension. `elements`: if `from` is a shard, the size of its dimension
/// before this sharding.
at::Tensor perform(const Placement& from, const Placement& to, const at::Tensor& local, std::int64_t elements,
                   const ProcessGroupPtr& group, Completion completion = Completion::blocking);

/// S(i) -> R.
at::Tensor gather_shards(const at::Tensor& local, const Placement& from, std::int64_t elements,
                         const ProcessGroupPtr& group, Completion completion = Completion::blocking);
/// S(i) -> S(j).
at::Tensor exchange_shards(const at::Tensor& local, const Placement& from, std::int64_t elements, const Placement& to,
                           const ProcessGroupPtr& group, Completion completion = Completion::blocking);
/// P -> R.
at::Tensor reduce_all(const at::Tensor& local, Placement::Reduction reduction, const ProcessGroupPtr& group,
                      Completion completion = Completion::blocking);
/// P -> S(i).
at::Tensor reduce_to_shard(const at::Tensor& local, Placement::Reduction reduction, const Placement& to,
                           const ProcessGroupPtr& group, Completion completion = Completion::blocking);
/// R -> S(i): a view, unless the shard is a strided one.
at::Tensor take_shard(const at::Tensor& whole, const Placement& to, std::int64_t ranks, std::int64_t rank);

}  // namespace cohort::dtensor
