// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/sparse_rows.h"

#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

namespace cohort::ddp {

at::Tensor all_reduce_rows(ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& ids,
                           const std::string& parameter) {
  const auto known = ids.to(gradient.device());
  const auto mine = gradient.coalesce();
  const auto rows = mine.indices().select(0, 0);
  const auto places = at::searchsorted(known, rows);
  const bool are_known = known.numel() == 0
                             ? rows.numel() == 0
                             : at::equal(known.index_select(0, places.clamp_max(known.numel() - 1)), rows);
  if (!are_known) {
    throw Error(fmt::format("the sparse gradient of parameter {} has a row that is not among its ids", parameter));
  }
  auto sizes = mine.values().sizes().vec();
  sizes[0] = known.numel();
  auto dense = at::zeros(sizes, mine.values().options());
  dense.index_add_(0, places, mine.values());
  group.all_reduce(buffer_of(dense), {.stream = current_stream(dense)});
  return at::sparse_coo_tensor(known.unsqueeze(0), dense, gradient.sizes()).coalesce();
}

}  // namespace cohort::ddp
