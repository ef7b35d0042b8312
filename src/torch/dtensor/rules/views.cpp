// SPDX-License-Identifier: BSD-3-Clause
//
// Views. The local part of the view is a view of the local part: nothing is copied or communicated, and writing through
// it is seen in the base. Where that is not possible the call is refused, because a copy would lose what is written to
// it; but view() and reshape(), which linear layers apply to their inputs, then give a copy that refuses to be written.
#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"
#include "torch/dtensor/rules/reshape.h"

namespace cohort::dtensor {

namespace {

/// Gives the layout of the view for a map of tensor dimensions to dimensions of the view. Refuses if a sharded
/// dimension has no counterpart there.
template <class Map>
LayoutPtr mapped_layout(const OpCall& call, Map&& map) {
  auto placements = call.layout().placements;
  bool is_changed = false;
  for (auto& each : placements) {
    if (!each.is_shard()) continue;
    const std::optional<std::int64_t> dim = map(each.dim());
    if (!dim) {
      call.refuse(
          "the view would cut or remove a sharded dimension; redistribute() the tensor before, so that the "
          "dimension is whole on every rank");
    }
    if (*dim == each.dim()) continue;
    each = each.is_strided_shard() ? Placement(StridedShard(*dim, each.split_factor())) : Placement(Shard(*dim));
    is_changed = true;
  }
  if (!is_changed) return call.layout_pointer();
  return std::make_shared<const Layout>(Layout{.mesh = call.mesh(), .placements = std::move(placements)});
}

/// Sizes and strides of a tensor or a view of it.
struct Shape {
  c10::DimVector sizes;
  c10::DimVector strides;

  explicit Shape(const TensorArgument& of) : sizes(of.sizes), strides(of.strides) {}
  void erase(std::int64_t dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }
};

void run_view(OpCall& call, const LayoutPtr& layout, const Shape& shape) {
  call.localize_as_they_are();
  call.run_local();
  call.wrap_result(layout, shape.sizes, shape.strides);
}

void run_permutation(OpCall& call, const c10::DimVector& order) {
  const auto& tensor = call.tensors()[0];
  Shape permuted(tensor);
  for (std::size_t i = 0; i < order.size(); ++i) {
    permuted.sizes[i] = tensor.sizes[static_cast<std::size_t>(order[i])];
    permuted.strides[i] = tensor.strides[static_cast<std::size_t>(order[i])];
  }
  const auto layout = mapped_layout(call, [&](std::int64_t dim) -> std::optional<std::int64_t> {
    return std::find(order.begin(), order.end(), dim) - order.begin();
  });
  run_view(call, layout, permuted);
}

void run_permute(OpCall& call) {
  const auto dims = call.tensors()[0].sizes.size();
  c10::DimVector order;
  for (const auto d : call.argument(1).toIntVector()) order.push_back(wrapped_dim(d, dims));
  run_permutation(call, order);
}

c10::DimVector identity_order(std::size_t dims) {
  c10::DimVector order(dims);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void run_transpose(OpCall& call) {
  const auto dims = call.tensors()[0].sizes.size();
  auto order = identity_order(dims);
  if (dims > 0) {
    std::swap(order[static_cast<std::size_t>(wrapped_dim(call.argument(1).toInt(), dims))],
              order[static_cast<std::size_t>(wrapped_dim(call.argument(2).toInt(), dims))]);
  }
  run_permutation(call, order);
}

void run_t(OpCall& call) {
  auto order = identity_order(call.tensors()[0].sizes.size());
  std::reverse(order.begin(), order.end());
  run_permutation(call, order);
}

void run_unsqueeze(OpCall& call) {
  Shape shape(call.tensors()[0]);
  const auto at = wrapped_dim(call.argument(1).toInt(), shape.sizes.size() + 1);
  const auto next = static_cast<std::size_t>(at);
  const auto stride = next < shape.sizes.size() ? shape.sizes[next] * shape.strides[next] : 1;
  shape.sizes.insert(shape.sizes.begin() + at, 1);
  shape.strides.insert(shape.strides.begin() + at, stride);
  run_view(call, mapped_layout(call, [&](std::int64_t dim) { return std::optional(dim + (dim >= at ? 1 : 0)); }),
           shape);
}

/// squeeze, squeeze.dim and squeeze.dims, and those that change the tensor itself. A sharded dimension of size 1 stays
/// whole on one rank only, so it cannot go.
void run_squeeze(OpCall& call) {
  const auto sizes = call.tensors()[0].sizes;
  c10::SmallVector<bool, 5> goes(sizes.size(), call.arguments() == 1);
  if (call.arguments() > 1) {
    const auto& dims = call.argument(1);
    const auto given = dims.isInt() ? std::vector<std::int64_t>{dims.toInt()} : dims.toIntVector();
    for (const auto d : given) {
      const auto dim = static_cast<std::size_t>(wrapped_dim(d, sizes.size()));
      if (!sizes.empty()) goes[dim] = true;
    }
  }
  c10::DimVector gone;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    goes[d] = goes[d] && sizes[d] == 1;
    if (goes[d]) gone.push_back(static_cast<std::int64_t>(d));
  }
  Shape left(call.tensors()[0]);
  for (auto each = gone.rbegin(); each != gone.rend(); ++each) left.erase(*each);
  const auto layout = mapped_layout(call, [&](std::int64_t dim) -> std::optional<std::int64_t> {
    if (goes[static_cast<std::size_t>(dim)]) return std::nullopt;
    return dim - std::count_if(gone.begin(), gone.end(), [&](std::int64_t each) { return each < dim; });
  });
  // By its global sizes: locally, another dimension may happen to have the size 1.
  call.localize_as_they_are();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto local = call.argument(0).toTensor();
  if (takes_part(call)) {
    for (auto each = gone.rbegin(); each != gone.rend(); ++each) local = local.squeeze(*each);
    if (gone.empty()) local = local.alias();
  }
  auto result = wrap(std::move(local), layout, left.sizes, left.strides);
  if (call.info().result_is_argument[0] < 0) return call.finish({std::move(result)});
  auto self = call.given(0).toTensor();
  self.unsafeGetTensorImpl()->shallow_copy_from(result.getIntrusivePtr());
  call.finish({std::move(self)});
}

void run_expand(OpCall& call) {
  const auto from = call.tensors()[0].sizes;
  c10::DimVector sizes(call.argument(1).toIntVector());
  const auto added = static_cast<std::int64_t>(sizes.size() - from.size());
  for (std::size_t d = 0; d < from.size(); ++d) {
    auto& size = sizes[d + static_cast<std::size_t>(added)];
    if (size == -1) size = from[d];
  }
  const auto layout = mapped_layout(call, [&](std::int64_t dim) -> std::optional<std::int64_t> {
    if (sizes[static_cast<std::size_t>(dim + added)] != from[static_cast<std::size_t>(dim)]) return std::nullopt;
    return dim + added;
  });
  auto local = std::vector<std::int64_t>(sizes.begin(), sizes.end());
  for (const auto& each : layout->placements) {
    if (each.is_shard()) local[static_cast<std::size_t>(each.dim())] = -1;
  }
  call.argument(1) = std::move(local);
  Shape shape(call.tensors()[0]);
  shape.strides.insert(shape.strides.begin(), static_cast<std::size_t>(added), 0);
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (sizes[d + static_cast<std::size_t>(added)] != from[d]) shape.strides[d + static_cast<std::size_t>(added)] = 0;
  }
  shape.sizes = sizes;
  run_view(call, layout, shape);
}

/// slice.Tensor(self, dim, start, end, step)
void run_slice(OpCall& call) {
  Shape shape(call.tensors()[0]);
  const auto dim = existing_dim(call.argument(1).toInt(), shape.sizes.size());
  auto& size = shape.sizes[static_cast<std::size_t>(dim)];
  const auto bound = [&](const c10::IValue& value, std::int64_t otherwise) {
    const auto given = value.isNone() ? otherwise : value.toInt();
    return std::clamp<std::int64_t>(given < 0 ? given + size : given, 0, size);
  };
  const auto start = bound(call.argument(2), 0);
  const auto end = std::max(start, bound(call.argument(3), size));
  const auto step = call.argument(4).toInt();
  const bool is_whole = start == 0 && end == size && step == 1;
  const auto layout = mapped_layout(
      call, [&](std::int64_t each) { return each == dim && !is_whole ? std::nullopt : std::optional(each); });
  size = (end - start + step - 1) / step;
  shape.strides[static_cast<std::size_t>(dim)] *= step;
  if (is_whole) {
    call.argument(2) = 0;
    call.argument(3) = std::numeric_limits<std::int64_t>::max();
  }
  run_view(call, layout, shape);
}

void run_select(OpCall& call) {
  Shape shape(call.tensors()[0]);
  const auto dim = existing_dim(call.argument(1).toInt(), shape.sizes.size());
  shape.erase(dim);
  run_view(call,
           mapped_layout(call,
                         [&](std::int64_t each) -> std::optional<std::int64_t> {
                           if (each == dim) return std::nullopt;
                           return each < dim ? each : each - 1;
                         }),
           shape);
}

/// The sizes of the parts of a dimension, by the size of each but the last or by a list.
std::vector<std::int64_t> part_sizes(const c10::IValue& given, std::int64_t size) {
  if (!given.isInt()) return given.toIntVector();
  std::vector<std::int64_t> parts;
  for (std::int64_t begin = 0; begin < size; begin += given.toInt()) {
    parts.push_back(std::min(given.toInt(), size - begin));
  }
  if (parts.empty()) parts.push_back(0);
  return parts;
}

/// split.Tensor, split_with_sizes, unbind.int: a list of views along a dimension that must be whole on every rank.
void run_split(OpCall& call, std::size_t dim_position, bool removes_dim) {
  const Shape whole(call.tensors()[0]);
  const auto dim = existing_dim(call.argument(dim_position).toInt(), whole.sizes.size());
  const auto layout = mapped_layout(call, [&](std::int64_t each) -> std::optional<std::int64_t> {
    if (each == dim) return std::nullopt;
    return removes_dim && each > dim ? each - 1 : each;
  });
  const auto size = whole.sizes[static_cast<std::size_t>(dim)];
  const auto sizes =
      removes_dim ? std::vector<std::int64_t>(static_cast<std::size_t>(size)) : part_sizes(call.argument(1), size);
  call.localize_as_they_are();
  std::vector<at::Tensor> locals;
  if (takes_part(call)) {
    call.run_local();
    // As a vector: what a List's iterator refers to differs between versions of libtorch.
    locals = call.take_list_result().vec();
  } else {
    locals.assign(sizes.size(), call.argument(0).toTensor().detach());
  }
  c10::List<at::Tensor> parts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto part = whole;
    if (removes_dim) {
      part.erase(dim);
    } else {
      part.sizes[static_cast<std::size_t>(dim)] = sizes[i];
    }
    parts.push_back(wrap(std::move(locals[i]), layout, part.sizes, part.strides));
  }
  call.finish({parts});
}

/// view, and _reshape_alias and _unsafe_view, which reshape() is made of. Where the parts would no longer be shards,
/// the tensor is redistributed first, and the result shares no memory with it: writing to it is then refused.
void run_reshape(OpCall& call) {
  const auto& tensor = call.tensors()[0];
  const auto sizes = inferred_sizes(tensor.sizes, call.argument(1).toIntVector());
  if (!sizes) call.refuse("the sizes of the view do not fit the number of elements");
  const auto strides = at::detail::computeStride(tensor.sizes, tensor.strides, *sizes);
  if (!strides && call.info().returns_view) call.refuse("the view is not possible with these strides; use reshape()");
  auto from = call.layout_pointer();
  auto reshaped = reshape(tensor.sizes, *sizes, *from);
  while (reshaped.refused) {
    auto placements = from->placements;
    placements[*reshaped.refused] = Replicate();
    from = std::make_shared<const Layout>(Layout{call.mesh(), std::move(placements)});
    reshaped = reshape(tensor.sizes, *sizes, *from);
  }
  const auto layout = reshaped.placements == from->placements
                          ? from
                          : std::make_shared<const Layout>(Layout{call.mesh(), reshaped.placements});
  const auto original = tensor.impl->local();
  call.localize({&from, 1});
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto local = call.argument(0).toTensor();
  // The part may lie in memory in another order than the whole would: then it is copied, too.
  if (takes_part(call)) local = local.reshape(reshaped_local_sizes(reshaped, *sizes, local.sizes()));
  const bool is_copy = call.info().returns_view && !local.is_alias_of(original);
  auto result = wrap(std::move(local), layout, *sizes, strides ? c10::DimVector(*strides) : dense_strides(*sizes));
  if (is_copy) static_cast<DTensorImpl*>(result.unsafeGetTensorImpl())->set_copied_view();
  call.finish({std::move(result)});
}

/// slice_backward(grad, input_sizes, dim, ...) and select_backward: a new tensor of the sizes of the forward's input.
void run_placed_gradient(OpCall& call, bool adds_dim) {
  const c10::DimVector sizes(call.argument(1).toIntVector());
  const auto dim = existing_dim(call.argument(2).toInt(), sizes.size());
  const auto layout = mapped_layout(call, [&](std::int64_t each) -> std::optional<std::int64_t> {
    if (adds_dim) return each >= dim ? each + 1 : each;
    if (each == dim && call.tensors()[0].sizes[static_cast<std::size_t>(dim)] != sizes[static_cast<std::size_t>(dim)]) {
      return std::nullopt;
    }
    return each;
  });
  const auto grad_local = call.tensors()[0].impl->local().sizes();
  std::vector<std::int64_t> local(sizes.begin(), sizes.end());
  for (const auto& each : layout->placements) {
    if (!each.is_shard()) continue;
    const auto source = adds_dim && each.dim() > dim ? each.dim() - 1 : each.dim();
    local[static_cast<std::size_t>(each.dim())] = takes_part(call) ? grad_local[static_cast<std::size_t>(source)] : 0;
  }
  call.argument(1) = std::move(local);
  call.localize_as_they_are();
  call.run_local();
  call.wrap_results({&layout, 1}, {&sizes, 1});
}

}  // namespace

void add_view_rules(RuleTable& table) {
  constexpr auto family = "view";
  table.add("aten::permute", family, run_permute);
  table.add("aten::transpose.int", family, run_transpose);
  table.add("aten::t", family, run_t);
  table.add("aten::unsqueeze", family, run_unsqueeze);
  table.add({"aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims", "aten::squeeze_", "aten::squeeze_.dim",
             "aten::squeeze_.dims"},
            family, run_squeeze);
  table.add("aten::expand", family, run_expand);
  table.add("aten::slice.Tensor", family, run_slice);
  table.add("aten::select.int", family, run_select);
  table.add({"aten::split.Tensor", "aten::split_with_sizes"}, family, [](OpCall& call) { run_split(call, 2, false); });
  table.add("aten::unbind.int", family, [](OpCall& call) { run_split(call, 1, true); });
  table.add({"aten::view", "aten::_unsafe_view", "aten::_reshape_alias"}, family, run_reshape);
  table.add("aten::slice_backward", family, [](OpCall& call) { run_placed_gradient(call, false); });
  table.add("aten::select_backward", family, [](OpCall& call) { run_placed_gradient(call, true); });
}

}  // namespace cohort::dtensor
