// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "torch/dtensor/parts.h"
#include "torch/dtensor/transitions.h"
#include "torch/functional/async_tensor.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// The part, with as many rows as the largest one has.
at::Tensor padded_part(const at::Tensor& local, std::int64_t dim, std::int64_t rows) {
  const auto own = local.size(dim);
  if (own == rows) return local.contiguous();
  auto padded = at::empty(with_size(local.sizes(), dim, rows), local.options());
  padded.narrow(dim, 0, own).copy_(local);
  padded.narrow(dim, own, rows - own).zero_();
  return padded;
}

}  // namespace

at::Tensor gather_shards(const at::Tensor& local, const Placement& from, std::int64_t elements,
                         const ProcessGroupPtr& group, Completion completion) {
  const auto dim = from.dim();
  const auto ranks = group->size();
  const auto sizes = with_size(local.sizes(), dim, elements);
  const auto total = c10::multiply_integers(sizes);
  if (total == 0) return at::empty(sizes, local.options());

  const auto rows = shard_size(from, elements, ranks, 0);
  const auto all = functional::on_group::all_gather(padded_part(local, dim, rows), group, completion);
  if (is_even(from, elements, ranks)) return dim == 0 ? all : unpack_evenly(all, sizes, dim, ranks);
  // Only the last parts can be smaller, so the padding is at the end.
  if (is_outermost(sizes, dim) && is_consecutive(from)) return all.view({-1}).narrow(0, 0, total).view(sizes);
  const auto result = at::empty(sizes, local.options());
  return functional::filled_from(all, result, [=](const at::Tensor& gathered) {
    const auto parts = gathered.view({ranks, -1});
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      copy_from_part(result, parts.select(0, rank).view(with_size(sizes, dim, rows)), dim, from, ranks, rank);
    }
  });
}

}  // namespace cohort::dtensor
