// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/accumulate.h>

#include "torch/dtensor/parts.h"
#include "torch/dtensor/transitions.h"
#include "torch/functional/async_tensor.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

ReduceOp::Kind reduce_kind(Placement::Reduction reduction) {
  switch (reduction) {
    case Placement::Reduction::sum:
      return ReduceOp::Kind::sum;
    case Placement::Reduction::avg:
      return ReduceOp::Kind::avg;
    case Placement::Reduction::product:
      return ReduceOp::Kind::product;
    case Placement::Reduction::max:
      return ReduceOp::Kind::max;
    case Placement::Reduction::min:
      break;
  }
  return ReduceOp::Kind::min;
}

/// What each rank is to get of the sum, one behind the other, each padded to `rows`. The ranks are the first dimension,
/// or divide it.
at::Tensor packed_parts(const at::Tensor& local, const Placement& to, std::int64_t rows, std::int64_t ranks) {
  const auto dim = to.dim();
  const auto elements = local.size(dim);
  if (is_even(to, elements, ranks)) return dim == 0 ? local.contiguous() : pack_evenly(local, dim, ranks);
  const auto sizes = with_size(local.sizes(), dim, rows);
  auto packed = at::empty({ranks, c10::multiply_integers(sizes)}, local.options());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto part = packed.select(0, rank).view(sizes);
    const auto used = shard_size(to, elements, ranks, rank);
    copy_to_part(part, local, dim, to, ranks, rank);
    if (used < rows) part.narrow(dim, used, rows - used).zero_();
  }
  return packed;
}

}  // namespace

at::Tensor reduce_all(const at::Tensor& local, Placement::Reduction reduction, const ProcessGroupPtr& group,
                      Completion completion) {
  if (local.numel() == 0) return at::empty_like(local);
  return functional::on_group::all_reduce(local.contiguous(), reduce_kind(reduction), group, completion);
}

at::Tensor reduce_to_shard(const at::Tensor& local, Placement::Reduction reduction, const Placement& to,
                           const ProcessGroupPtr& group, Completion completion) {
  const auto dim = to.dim();
  const auto ranks = group->size();
  const auto own = shard_size(to, local.size(dim), ranks, group->rank());
  if (local.numel() == 0) return at::empty(with_size(local.sizes(), dim, own), local.options());

  const auto rows = shard_size(to, local.size(dim), ranks, 0);
  const auto part = functional::on_group::reduce_scatter(packed_parts(local, to, rows, ranks), reduce_kind(reduction),
                                                         group, completion);
  const auto padded = part.view(with_size(local.sizes(), dim, rows));
  return own == rows ? padded : functional::copy_of(padded.narrow(dim, 0, own));
}

}  // namespace cohort::dtensor
