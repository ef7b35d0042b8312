// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/transitions.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/zeros_like.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <vector>

#include "torch/dtensor/parts.h"

namespace cohort::dtensor {

namespace {

/// A share of the tensor such that the shares of all ranks add up to it. Integers cannot be divided: rank 0 has them
/// all.
at::Tensor as_summand(const at::Tensor& whole, std::int64_t ranks, std::int64_t rank) {
  if (at::isFloatingType(whole.scalar_type()) || at::isComplexType(whole.scalar_type())) return at::div(whole, ranks);
  return rank == 0 ? whole.clone() : at::zeros_like(whole);
}

/// from_local() takes the user's word for the global sizes.
void check_part(const at::Tensor& local, const Placement& from, std::int64_t elements, const ProcessGroupPtr& group) {
  const auto expected = shard_size(from, elements, group->size(), group->rank());
  if (local.size(from.dim()) == expected) return;
  throw ValueError(
      fmt::format(
          "redistribute: rank {} of {} holds {} elements of dimension {}, but {} of {} elements would be {}; give "
          "from_local() the global sizes where the parts are not equally large",
          group->rank(), group->size(), local.size(from.dim()), from.dim(), to_string(from), elements, expected),
      {.group = group->id(), .op = "redistribute"});
}

}  // namespace

at::Tensor take_shard(const at::Tensor& whole, const Placement& to, std::int64_t ranks, std::int64_t rank) {
  const auto dim = to.dim();
  if (is_consecutive(to)) {
    const auto range = shard_range(whole.size(dim), ranks, rank);
    return whole.narrow(dim, range.offset, range.size);
  }
  std::vector<at::Tensor> pieces{whole.narrow(dim, 0, 0)};
  for_each_range(to, whole.size(dim), ranks, rank,
                 [&](const ShardRange& range) { pieces.push_back(whole.narrow(dim, range.offset, range.size)); });
  return at::cat(pieces, dim);
}

at::Tensor perform(const Placement& from, const Placement& to, const at::Tensor& local, std::int64_t elements,
                   const ProcessGroupPtr& group, Completion completion) {
  if (from.is_shard()) {
    check_part(local, from, elements, group);
    if (to.is_replicate()) return gather_shards(local, from, elements, group, completion);
    if (to.is_shard() && to.dim() != from.dim()) return exchange_shards(local, from, elements, to, group, completion);
  } else if (from.is_partial()) {
    if (to.is_replicate()) return reduce_all(local, from.reduction(), group, completion);
    if (to.is_shard()) return reduce_to_shard(local, from.reduction(), to, group, completion);
  } else {
    if (to.is_shard()) return take_shard(local, to, group->size(), group->rank());
    if (to.is_partial(Placement::Reduction::sum)) return as_summand(local, group->size(), group->rank());
  }
  throw Error(fmt::format("redistribute: there is no step {} -> {}", to_string(from), to_string(to)));
}

}  // namespace cohort::dtensor
