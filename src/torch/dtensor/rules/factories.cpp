// SPDX-License-Identifier: BSD-3-Clause
//
// New tensors like a given one. They lie as it does, but where it is Partial they are replicated: a tensor of ones is
// not a sum of ones.
#include <ATen/ATen.h>

#include <algorithm>

#include "torch/dtensor/redistribute_local.h"
#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

LayoutPtr without_partial(const LayoutPtr& layout) {
  auto placements = layout->placements;
  bool is_changed = false;
  for (auto& each : placements) {
    if (!each.is_partial()) continue;
    each = Replicate();
    is_changed = true;
  }
  return is_changed ? std::make_shared<const Layout>(Layout{.mesh = layout->mesh, .placements = std::move(placements)})
                    : layout;
}

void run_like(OpCall& call) {
  const auto layout = without_partial(call.layout_pointer());
  const auto& like = call.tensors()[0];
  const bool is_row_major = is_contiguous_format(call.argument(call.arguments() - 1)) ||
                            std::find(like.strides.begin(), like.strides.end(), 0) != like.strides.end();
  call.localize_as_they_are();
  call.run_local();
  call.wrap_result(layout, like.sizes,
                   is_row_major ? dense_strides(like.sizes) : dense_strides(like.sizes, like.strides));
}

/// new_zeros(self, size, ...): as self if the sizes are equal (gradients are made so), otherwise replicated.
void run_new(OpCall& call) {
  const c10::DimVector sizes(call.argument(1).toIntVector());
  const bool is_like = call.tensors()[0].sizes == at::IntArrayRef(sizes);
  const auto layout = is_like ? without_partial(call.layout_pointer()) : replicated_layout(call.mesh());
  call.localize_as_they_are();
  call.argument(1) = local_sizes(sizes, *layout);
  call.run_local();
  call.wrap_results({&layout, 1}, SizesList{sizes});
}

/// new_empty_strided(self, size, stride, ...): dense, with the dimensions in the order of the strides.
void run_new_strided(OpCall& call) {
  const c10::DimVector sizes(call.argument(1).toIntVector());
  const auto strides = call.argument(2).toIntVector();
  const bool is_like = call.tensors()[0].sizes == at::IntArrayRef(sizes);
  const auto layout = is_like ? without_partial(call.layout_pointer()) : replicated_layout(call.mesh());
  auto parts = local_sizes(sizes, *layout);
  call.localize_as_they_are();
  call.argument(2) = at::IntArrayRef(takes_part(call) ? dense_strides(parts, strides) : dense_strides(parts)).vec();
  call.argument(1) = std::move(parts);
  call.run_local();
  call.wrap_result(layout, sizes, dense_strides(sizes, strides));
}

}  // namespace

void add_factory_rules(RuleTable& table) {
  table.add({"aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like"}, "factory", run_like);
  table.add({"aten::new_zeros", "aten::new_ones", "aten::new_empty", "aten::new_full"}, "factory", run_new);
  table.add("aten::new_empty_strided", "factory", run_new_strided);
}

}  // namespace cohort::dtensor
