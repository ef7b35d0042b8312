// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "torch/dtensor/parts.h"
#include "torch/dtensor/transitions.h"
#include "torch/functional/async_tensor.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// Rank r has sent its shard of dimension `from.dim()`.
at::Tensor unpacked_from_ranks(const at::Tensor& received, const Placement& from, at::IntArrayRef sizes,
                               const std::vector<std::int64_t>& splits) {
  if (is_outermost(sizes, from.dim()) && is_consecutive(from)) return received.view(sizes);
  const auto result = at::empty(sizes, received.options());
  return functional::filled_from(received, result, [=](const at::Tensor& parts) {
    const auto ranks = static_cast<std::int64_t>(splits.size());
    std::int64_t position = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto split = splits[static_cast<std::size_t>(rank)];
      const auto rows = shard_size(from, result.size(from.dim()), ranks, rank);
      const auto part = parts.narrow(0, position, split).view(with_size(result.sizes(), from.dim(), rows));
      copy_from_part(result, part, from.dim(), from, ranks, rank);
      position += split;
    }
  });
}

}  // namespace

// The sizes of all parts are known to all ranks, so nothing is padded.
at::Tensor exchange_shards(const at::Tensor& local, const Placement& from, std::int64_t elements, const Placement& to,
                           const ProcessGroupPtr& group, Completion completion) {
  const std::int64_t ranks = group->size();
  const auto whole = with_size(local.sizes(), from.dim(), elements);
  const auto kept = shard_size(to, local.size(to.dim()), ranks, group->rank());
  const auto sizes = with_size(whole, to.dim(), kept);
  if (c10::multiply_integers(whole) == 0) return at::empty(sizes, local.options());

  if (is_even(from, elements, ranks) && is_even(to, local.size(to.dim()), ranks)) {
    const auto parts = functional::on_group::all_to_all(pack_evenly(local, to.dim(), ranks), {}, {}, group, completion);
    return unpack_evenly(parts, sizes, from.dim(), ranks);
  }
  const auto others = c10::multiply_integers(whole) / elements / local.size(to.dim());
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    sent.push_back(others * local.size(from.dim()) * shard_size(to, local.size(to.dim()), ranks, rank));
    received.push_back(others * kept * shard_size(from, elements, ranks, rank));
  }
  const auto all =
      functional::on_group::all_to_all(packed_for_ranks(local, to, sent), received, sent, group, completion);
  return unpacked_from_ranks(all, from, sizes, received);
}

}  // namespace cohort::dtensor
