// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/rules/sizes.h"

#include <ATen/core/Reduction.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <vector>

namespace cohort::dtensor {

namespace {

at::IntArrayRef sizes_of(const OpCall& call, std::size_t tensor) {
  return call.tensors()[tensor].sizes;
}

/// The tensor of an optional argument; null if there is none.
const TensorArgument* tensor_at(const OpCall& call, std::size_t position) {
  const auto& tensors = call.tensors();
  const auto* const found = std::find_if(tensors.begin(), tensors.end(),
                                         [&](const TensorArgument& each) { return each.position == position; });
  return found == tensors.end() ? nullptr : found;
}

void require(const OpCall& call, bool fits, std::string_view why) {
  if (!fits) [[unlikely]]
    call.refuse_sizes(why);
}

bool expands_to(at::IntArrayRef from, at::IntArrayRef to) {
  if (from.size() > to.size()) return false;
  const auto missing = to.size() - from.size();
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1 && from[d] != to[d + missing]) return false;
  }
  return true;
}

bool are_equal_but(at::IntArrayRef a, at::IntArrayRef b, std::size_t dim) {
  if (a.size() != b.size()) return false;
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (d != dim && a[d] != b[d]) return false;
  }
  return true;
}

/// Whether an index of these sizes stays within the tensor, but for the dimension that is indexed.
bool is_within_but(at::IntArrayRef index, at::IntArrayRef tensor, std::size_t dim) {
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (d != dim && index[d] > tensor[d]) return false;
  }
  return true;
}

std::size_t dim_at(const OpCall& call, std::size_t position, std::size_t dims) {
  return static_cast<std::size_t>(wrapped_dim(call.argument(position).toInt(), dims));
}

constexpr auto differ = "the sizes differ";

void check_product(const OpCall& call, std::size_t first, std::size_t dims) {
  const auto a = sizes_of(call, first);
  const auto b = sizes_of(call, first + 1);
  require(call, a.size() == dims && b.size() == dims, "matrices are needed, or batches of them for bmm and baddbmm");
  require(call, dims == 2 || a[0] == b[0], "the batches have different sizes");
  require(call, a[dims - 1] == b[dims - 2],
          "the columns of the first matrix are not as many as the rows of the second");
}

template <std::size_t Dims>
void check_sum_and_product(const OpCall& call) {
  if (call.tensors().size() != 3) return;  // refused by the rule
  check_product(call, 1, Dims);
  c10::DimVector sizes(sizes_of(call, 1));
  sizes.back() = sizes_of(call, 2).back();
  require(call, expands_to(sizes_of(call, 0), sizes), "the summand does not broadcast to the product");
}

void check_dot(const OpCall& call) {
  require(call, sizes_of(call, 0).size() == 1 && sizes_of(call, 0) == sizes_of(call, 1),
          "two vectors of equal sizes are needed");
}

void check_matrix_vector(const OpCall& call) {
  const auto matrix = sizes_of(call, 0);
  const auto vector = sizes_of(call, 1);
  require(call, matrix.size() == 2 && vector.size() == 1 && matrix[1] == vector[0],
          "a matrix is needed and a vector with an element for each of its columns");
}

void check_cat(const OpCall& call) {
  const auto first = sizes_of(call, 0);
  const auto dim = static_cast<std::size_t>(existing_dim(call.argument(1).toInt(), first.size()));
  for (const auto& each : call.tensors()) {
    require(call, are_equal_but(each.sizes, first, dim), "the sizes differ in more than the dimension that is joined");
  }
}

void check_all_equal(const OpCall& call) {
  for (const auto& each : call.tensors()) require(call, each.sizes == sizes_of(call, 0), differ);
}

void check_index_select(const OpCall& call) {
  require(call, sizes_of(call, 1).size() <= 1, "the index must have one dimension");
}

void check_gather(const OpCall& call) {
  const auto self = sizes_of(call, 0);
  const auto index = sizes_of(call, 1);
  require(call, index.size() == self.size(), "the index must have as many dimensions as the tensor");
  require(call, is_within_but(index, self, dim_at(call, 1, self.size())), "the index is larger than the tensor");
}

void check_scatter_add(const OpCall& call) {
  check_gather(call);
  const auto index = sizes_of(call, 1);
  const auto source = sizes_of(call, 2);
  require(call, index.size() == source.size() && is_within_but(index, source, index.size()),
          "the index is larger than the source");
}

void check_index_add(const OpCall& call) {
  check_index_select(call);
  const auto self = sizes_of(call, 0);
  const auto index = sizes_of(call, 1);
  const auto source = sizes_of(call, 2);
  const auto dim = dim_at(call, 1, self.size());
  require(call, are_equal_but(source, self, dim), "the sizes of the source differ in more than the indexed dimension");
  require(call, source.empty() || source[dim] == (index.empty() ? 1 : index[0]),
          "the index has not an element for each part of the source");
}

void check_embedding(const OpCall& call) {
  require(call, sizes_of(call, 0).size() == 2, "the table must be a matrix");
}

void check_embedding_backward(const OpCall& call) {
  const auto grad = sizes_of(call, 0);
  const auto indices = sizes_of(call, 1);
  require(call, grad.size() == indices.size() + 1 && grad.slice(0, indices.size()) == indices,
          "the gradient has not a row for each index");
}

/// The scores are at position `scores`, then come the targets and the weights. Scores of other than two dimensions are
/// refused by the rule. Dtypes are checked as well: the kernel's refusal would look as if one rank alone had a wrong
/// target.
void check_nll_sizes(const OpCall& call, std::size_t scores) {
  const auto sizes = tensor_at(call, scores)->sizes;
  if (sizes.size() != 2) return;
  require(call, tensor_at(call, scores + 1)->sizes == sizes.slice(0, 1), "there must be one target for each row");
  const auto* const weights = tensor_at(call, scores + 2);
  require(call, weights == nullptr || weights->sizes == sizes.slice(1, 1), "there must be one weight for each class");
  const auto dtype_of = [&](std::size_t position) { return call.argument(position).toTensor().scalar_type(); };
  const auto of_targets = dtype_of(scores + 1);
  require(call, of_targets == at::kLong || of_targets == at::kByte, "targets are numbers of classes: int64 or uint8");
  require(call, weights == nullptr || dtype_of(scores + 2) == dtype_of(scores),
          "the weights must have the dtype of the scores");
}

void check_nll_loss(const OpCall& call) {
  check_nll_sizes(call, 0);
}

void check_nll_loss_backward(const OpCall& call) {
  check_nll_sizes(call, 1);
  const auto scores = sizes_of(call, 1);
  const bool keeps_batch = call.argument(4).toInt() == at::Reduction::None;
  require(call, !keeps_batch || scores.size() != 2 || sizes_of(call, 0) == scores.slice(0, 1),
          "there must be one gradient for each row");
}

/// Convolutions and pooling. What follows from the channels and beyond is the same for all parts of a batch.
void check_batched(const OpCall& call) {
  require(call, sizes_of(call, 0).size() >= 3, "channels and what is in them are needed");
}

template <std::size_t Batched>
void check_batched_backward(const OpCall& call) {
  for (std::size_t i = 0; i < Batched; ++i) {
    const auto sizes = sizes_of(call, i);
    require(call, sizes.size() >= 3 && sizes[0] == sizes_of(call, 0)[0], "the batches have different sizes");
  }
}

/// The dimensions that are normalized are the last ones of the input, and those of weight and bias.
void check_layer_norm(const OpCall& call, at::IntArrayRef normalized, std::size_t weight) {
  const auto sizes = sizes_of(call, 0);
  require(call,
          !normalized.empty() && normalized.size() <= sizes.size() &&
              sizes.slice(sizes.size() - normalized.size()) == normalized,
          "the normalized sizes are not the last ones of the input");
  for (const auto position : {weight, weight + 1}) {
    const auto* const each = tensor_at(call, position);
    require(call, each == nullptr || each->sizes == normalized, "weight and bias must have the normalized sizes");
  }
}

void check_layer_norm_forward(const OpCall& call) {
  check_layer_norm(call, call.argument(1).toDimVector(), 2);
}

void check_layer_norm_backward(const OpCall& call) {
  require(call, sizes_of(call, 0) == sizes_of(call, 1), differ);
  check_layer_norm(call, call.argument(2).toDimVector(), 5);
}

void check_log_sigmoid_backward(const OpCall& call) {
  require(call, sizes_of(call, 0) == sizes_of(call, 1), differ);
}

void check_t(const OpCall& call) {
  require(call, sizes_of(call, 0).size() <= 2, "the tensor has more than two dimensions");
}

void check_permute(const OpCall& call) {
  const auto dims = sizes_of(call, 0).size();
  const auto order = call.argument(1).toDimVector();
  c10::SmallVector<bool, 5> is_there(dims, false);
  for (const auto dim : order) is_there[static_cast<std::size_t>(existing_dim(dim, dims))] = true;
  require(call, order.size() == dims && std::find(is_there.begin(), is_there.end(), false) == is_there.end(),
          "each dimension is needed once");
}

void check_expand(const OpCall& call) {
  const auto from = sizes_of(call, 0);
  const auto to = call.argument(1).toDimVector();
  require(call, to.size() >= from.size(), "fewer sizes than the tensor has dimensions");
  const auto added = to.size() - from.size();
  for (std::size_t d = 0; d < to.size(); ++d) {
    const bool is_kept = d >= added && (to[d] == -1 || to[d] == from[d - added]);
    require(call, is_kept || (to[d] >= 0 && (d < added || from[d - added] == 1)),
            "only dimensions of size 1 can be expanded");
  }
}

void check_slice(const OpCall& call) {
  require(call, call.argument(4).toInt() > 0, "the step must be positive");
}

void check_select(const OpCall& call) {
  const auto sizes = sizes_of(call, 0);
  const auto size = sizes[static_cast<std::size_t>(existing_dim(call.argument(1).toInt(), sizes.size()))];
  const auto index = call.argument(2).toInt();
  TORCH_CHECK_INDEX(index >= -size && index < size, call.name(), ": index ", index, " of a dimension of size ", size);
}

void check_split(const OpCall& call) {
  const auto sizes = sizes_of(call, 0);
  const auto size = sizes[static_cast<std::size_t>(existing_dim(call.argument(2).toInt(), sizes.size()))];
  if (call.argument(1).isInt()) {
    const auto part = call.argument(1).toInt();
    return require(call, part > 0 || (part == 0 && size == 0), "the size of a part must be positive");
  }
  const auto parts = call.argument(1).toIntVector();
  const bool is_negative = std::any_of(parts.begin(), parts.end(), [](std::int64_t each) { return each < 0; });
  require(call, !is_negative && std::accumulate(parts.begin(), parts.end(), std::int64_t{0}) == size,
          "the parts do not add up to the dimension");
}

template <std::size_t Dims>
void check_product_of(const OpCall& call) {
  check_product(call, 0, Dims);
}

}  // namespace

SizeCheck size_check_of(std::string_view op) {
  static const std::unordered_map<std::string_view, SizeCheck> checks{
      {"aten::mm", check_product_of<2>},
      {"aten::bmm", check_product_of<3>},
      {"aten::addmm", check_sum_and_product<2>},
      {"aten::baddbmm", check_sum_and_product<3>},
      {"aten::dot", check_dot},
      {"aten::mv", check_matrix_vector},
      {"aten::cat", check_cat},
      {"aten::stack", check_all_equal},
      {"aten::index_select", check_index_select},
      {"aten::gather", check_gather},
      {"aten::scatter_add_", check_scatter_add},
      {"aten::index_add_", check_index_add},
      {"aten::embedding", check_embedding},
      {"aten::embedding_dense_backward", check_embedding_backward},
      {"aten::nll_loss_forward", check_nll_loss},
      {"aten::nll_loss_backward", check_nll_loss_backward},
      {"aten::convolution", check_batched},
      {"aten::convolution_backward", check_batched_backward<2>},
      {"aten::max_pool2d_with_indices", check_batched},
      {"aten::max_pool2d_with_indices_backward", check_batched_backward<3>},
      {"aten::avg_pool2d", check_batched},
      {"aten::avg_pool2d_backward", check_batched_backward<2>},
      {"aten::_adaptive_avg_pool2d", check_batched},
      {"aten::_adaptive_avg_pool2d_backward", check_batched_backward<2>},
      {"aten::native_layer_norm", check_layer_norm_forward},
      {"aten::native_layer_norm_backward", check_layer_norm_backward},
      {"aten::_softmax_backward_data", check_all_equal},
      {"aten::_log_softmax_backward_data", check_all_equal},
      {"aten::log_sigmoid_backward", check_log_sigmoid_backward},
      {"aten::t", check_t},
      {"aten::permute", check_permute},
      {"aten::expand", check_expand},
      {"aten::slice.Tensor", check_slice},
      {"aten::select.int", check_select},
      {"aten::split.Tensor", check_split},
      {"aten::split_with_sizes", check_split},
  };
  const auto found = checks.find(op);
  return found == checks.end() ? nullptr : found->second;
}

}  // namespace cohort::dtensor
