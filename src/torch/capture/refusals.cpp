// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/refusals.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/names.h"
#include "torch/capture/graph_values.h"

namespace cohort::recording {

namespace {

using CallArguments = std::span<const c10::IValue>;

bool is_mask(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const auto& tensor = value.toTensor();
  return tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

bool has_mask(CallArguments arguments) {
  if (arguments.size() < 2 || !arguments[1].isList()) return false;
  const auto indices = arguments[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), is_mask);
}

/// Whether there must be as many values as the mask selects. One value for all of them can be written by a replay,
/// however many there are then, since it calls the operator again.
bool writes_as_many_as_mask_selects(CallArguments arguments) {
  if (!has_mask(arguments) || arguments.size() < 3 || !arguments[2].isTensor()) return false;
  const auto& values = arguments[2].toTensor();
  if (values.numel() == 1) return false;
  const auto indices = arguments[1].toListRef();
  if (indices.size() > 1) return true;
  // The selected places are the first dimension, those that the mask does not have are the rest.
  const auto rest = arguments[0].toTensor().dim() - indices[0].toTensor().dim();
  return values.dim() > rest && values.size(0) != 1;
}

/// Whether the number of repeated elements is left to the tensor.
bool has_no_output_size(CallArguments arguments) {
  return arguments.back().isNone();
}

bool has_no_class_count(CallArguments arguments) {
  return arguments.size() < 2 || !arguments[1].isInt() || arguments[1].toInt() < 0;
}

/// Whether elements decide. A tensor equals itself, and none of other sizes, as multi-head attention asks for its
/// query, key and value.
bool compares_elements(CallArguments arguments) {
  if (arguments.size() < 2 || !arguments[0].isTensor() || !arguments[1].isTensor()) return true;
  const auto& a = arguments[0].toTensor();
  const auto& b = arguments[1].toTensor();
  if (a.sizes() != b.sizes()) return false;
  return !a.has_storage() || !b.has_storage() || a.data_ptr() != b.data_ptr() || a.strides() != b.strides() ||
         a.scalar_type() != b.scalar_type();
}

bool changes_sizes(CallArguments arguments) {
  if (arguments.size() < 2 || !arguments[1].isIntList()) return true;
  const auto& tensor = arguments[0].toTensor();
  return tensor.sizes() != c10::IntArrayRef(arguments[1].toIntVector());
}

bool is_not_of_same_sizes(CallArguments arguments) {
  return arguments.size() < 2 || !arguments[1].isTensor() ||
         arguments[0].toTensor().sizes() != arguments[1].toTensor().sizes();
}

namespace reasons {

constexpr std::string_view size_depends =
    "the size of its result depends on the elements of a tensor, and a replay has the sizes of the recording";
constexpr std::string_view host_gets =
    "the host gets elements of a tensor, and a replay would not run what it does then";

constexpr std::array<std::string_view, 2> select_hints{
    "Choose with torch::where(mask, x, y) or x * mask, which keep the size.",
    "Or select before the step, and pass the result as an argument: each size has a recording of its own.",
};
constexpr Refusal selects{CaptureRefusal::host_read, size_depends, select_hints};

constexpr std::array<std::string_view, 2> mask_write_hints{
    "Write one value with masked_fill_(), or values of the whole size with torch::where() or masked_scatter_().",
    "Or compute indices before the step, and pass them as an argument.",
};
constexpr Refusal writes_by_mask{CaptureRefusal::host_read,
                                 "it takes as many values as the mask selects, which depends on the mask's elements",
                                 mask_write_hints};

constexpr std::array<std::string_view, 1> unique_hints{"Do it before the step, and pass the result as an argument."};
constexpr Refusal finds_unique{CaptureRefusal::host_read, size_depends, unique_hints};

constexpr std::array<std::string_view, 1> bincount_hints{
    "Add ones to a tensor of fixed size: torch::zeros({n}).scatter_add_(0, x, ones).",
};
constexpr Refusal counts_bins{CaptureRefusal::host_read, size_depends, bincount_hints};

constexpr std::array<std::string_view, 1> repeat_hints{
    "Give output_size to repeat_interleave(), or repeat by a number instead of a tensor.",
};
constexpr Refusal repeats{CaptureRefusal::host_read, size_depends, repeat_hints};

constexpr std::array<std::string_view, 1> one_hot_hints{
    "Compare with all classes: x.unsqueeze(-1) == torch::arange(classes), which reads nothing.",
};
constexpr Refusal counts_classes{CaptureRefusal::host_read, size_depends, one_hot_hints};

constexpr std::array<std::string_view, 2> packed_hints{
    "Pack the sequences before the step, so that each set of lengths has a recording of its own.",
    "Or use padded sequences with a mask.",
};
constexpr Refusal packs{CaptureRefusal::host_read,
                        "the lengths of the sequences, which it reads, decide what it computes", packed_hints};

constexpr std::array<std::string_view, 1> least_squares_hints{
    "Solve with torch::linalg::solve() or a QR decomposition.",
};
constexpr Refusal finds_rank{CaptureRefusal::host_read, size_depends, least_squares_hints};

constexpr std::array<std::string_view, 1> sparse_hints{"Use dense tensors in the step."};
constexpr Refusal makes_sparse{CaptureRefusal::host_read, size_depends, sparse_hints};

constexpr std::array<std::string_view, 3> item_hints{
    "Return the tensor from the step, and read it afterwards.",
    "Decide with torch::where() instead of if; compute with the tensor instead of the number.",
    "torch::nn::utils::clip_grad_norm_() and one_hot() read as well: see cohort::clip_grad_norm_() and ==.",
};
constexpr Refusal reads_element{CaptureRefusal::host_read, host_gets, item_hints};

constexpr std::array<std::string_view, 2> comparison_hints{
    "Compare with (a == b).all() or torch::isclose(a, b).all(), which are tensors, and read them after the step.",
    "torch::nn::MultiheadAttention compares query, key and value: self-attention is captured if they are one tensor, "
    "and "
    "attention to another tensor of the same sizes is not.",
};
constexpr Refusal compares{CaptureRefusal::host_read, host_gets, comparison_hints};

constexpr std::array<std::string_view, 1> resize_hints{
    "Make a new tensor of the size that is needed, or a view (narrow, reshape).",
};
constexpr Refusal resizes{CaptureRefusal::unsupported_operator,
                          "it gives a tensor another size, and a replay would find the size that the recording left",
                          resize_hints};

constexpr std::array<std::string_view, 1> storage_hints{
    "Write the elements with copy_(), or use the other tensor itself."};
constexpr Refusal replaces_memory{CaptureRefusal::unsupported_operator,
                                  "it gives a tensor other memory, and a recording knows tensors by their memory",
                                  storage_hints};

constexpr std::array<std::string_view, 1> file_hints{
    "Open the file before the step, and pass the tensor as an argument."};
constexpr Refusal opens_file{CaptureRefusal::unsupported_operator,
                             "each replay would open the file again, and elements change without an operator",
                             file_hints};

constexpr std::array<std::string_view, 1> other_group_hints{
    "Call the operations of a cohort::ProcessGroup or cohort::functional.",
};
constexpr Refusal uses_other_library{
    CaptureRefusal::unsupported_call,
    "it communicates through PyTorch's own groups, whose works a replay cannot wait for", other_group_hints};

}  // namespace reasons

constexpr std::array refused_table{
    RefusedOperator{.name = "aten::nonzero", .refusal = &reasons::selects},
    RefusedOperator{.name = "aten::nonzero_numpy", .refusal = &reasons::selects},
    RefusedOperator{.name = "aten::argwhere", .refusal = &reasons::selects},
    RefusedOperator{.name = "aten::where", .overload = "", .refusal = &reasons::selects},
    RefusedOperator{.name = "aten::masked_select", .refusal = &reasons::selects},
    RefusedOperator{.name = "aten::index", .refusal = &reasons::selects, .applies = has_mask},
    RefusedOperator{.name = "aten::_unsafe_index", .refusal = &reasons::selects, .applies = has_mask, .is_newer = true},
    RefusedOperator{
        .name = "aten::index_put", .refusal = &reasons::writes_by_mask, .applies = writes_as_many_as_mask_selects},
    RefusedOperator{
        .name = "aten::index_put_", .refusal = &reasons::writes_by_mask, .applies = writes_as_many_as_mask_selects},
    RefusedOperator{.name = "aten::_index_put_impl",
                    .refusal = &reasons::writes_by_mask,
                    .applies = writes_as_many_as_mask_selects},
    RefusedOperator{.name = "aten::_index_put_impl_",
                    .refusal = &reasons::writes_by_mask,
                    .applies = writes_as_many_as_mask_selects},
    RefusedOperator{.name = "aten::_unsafe_index_put",
                    .refusal = &reasons::writes_by_mask,
                    .applies = writes_as_many_as_mask_selects,
                    .is_newer = true},
    RefusedOperator{.name = "aten::_unique", .refusal = &reasons::finds_unique},
    RefusedOperator{.name = "aten::_unique2", .refusal = &reasons::finds_unique},
    RefusedOperator{.name = "aten::unique_dim", .refusal = &reasons::finds_unique},
    RefusedOperator{.name = "aten::unique_consecutive", .refusal = &reasons::finds_unique},
    RefusedOperator{.name = "aten::unique_dim_consecutive", .refusal = &reasons::finds_unique},
    RefusedOperator{.name = "aten::bincount", .refusal = &reasons::counts_bins},
    RefusedOperator{.name = "aten::repeat_interleave",
                    .overload = "Tensor",
                    .refusal = &reasons::repeats,
                    .applies = has_no_output_size},
    RefusedOperator{.name = "aten::repeat_interleave",
                    .overload = "self_Tensor",
                    .refusal = &reasons::repeats,
                    .applies = has_no_output_size},
    RefusedOperator{.name = "aten::one_hot", .refusal = &reasons::counts_classes, .applies = has_no_class_count},
    RefusedOperator{.name = "aten::_pack_padded_sequence", .refusal = &reasons::packs},
    RefusedOperator{.name = "aten::_pad_packed_sequence", .refusal = &reasons::packs, .is_hidden = true},
    RefusedOperator{.name = "aten::tensor_split",
                    .overload = "tensor_indices_or_sections",
                    .refusal = &reasons::packs,
                    .is_hidden = true},
    RefusedOperator{.name = "aten::ctc_loss", .overload = "Tensor", .refusal = &reasons::packs, .is_hidden = true},
    RefusedOperator{.name = "aten::_ctc_loss", .overload = "Tensor", .refusal = &reasons::packs},
    RefusedOperator{.name = "aten::_cudnn_ctc_loss", .overload = "Tensor", .refusal = &reasons::packs},
    RefusedOperator{.name = "aten::lstm", .overload = "data", .refusal = &reasons::packs, .is_hidden = true},
    RefusedOperator{.name = "aten::gru", .overload = "data", .refusal = &reasons::packs, .is_hidden = true},
    RefusedOperator{.name = "aten::rnn_tanh", .overload = "data", .refusal = &reasons::packs, .is_hidden = true},
    RefusedOperator{.name = "aten::rnn_relu", .overload = "data", .refusal = &reasons::packs, .is_hidden = true},
    RefusedOperator{.name = "aten::linalg_lstsq", .refusal = &reasons::finds_rank},
    RefusedOperator{.name = "aten::to_sparse", .refusal = &reasons::makes_sparse},
    RefusedOperator{.name = "aten::to_sparse_csr", .refusal = &reasons::makes_sparse},
    RefusedOperator{.name = "aten::to_sparse_csc", .refusal = &reasons::makes_sparse},
    RefusedOperator{.name = "aten::to_sparse_bsr", .refusal = &reasons::makes_sparse},
    RefusedOperator{.name = "aten::to_sparse_bsc", .refusal = &reasons::makes_sparse},
    RefusedOperator{.name = "aten::_to_sparse", .refusal = &reasons::makes_sparse, .is_newer = true},
    RefusedOperator{.name = "aten::_to_sparse_csr", .refusal = &reasons::makes_sparse, .is_newer = true},
    RefusedOperator{.name = "aten::_to_sparse_csc", .refusal = &reasons::makes_sparse, .is_newer = true},
    RefusedOperator{.name = "aten::_to_sparse_bsr", .refusal = &reasons::makes_sparse, .is_newer = true},
    RefusedOperator{.name = "aten::_to_sparse_bsc", .refusal = &reasons::makes_sparse, .is_newer = true},

    RefusedOperator{.name = "aten::_local_scalar_dense", .refusal = &reasons::reads_element},
    RefusedOperator{.name = "aten::item", .refusal = &reasons::reads_element},
    RefusedOperator{.name = "aten::is_nonzero", .refusal = &reasons::reads_element},
    RefusedOperator{.name = "aten::equal", .refusal = &reasons::compares, .applies = compares_elements},
    RefusedOperator{.name = "aten::allclose", .refusal = &reasons::compares},

    RefusedOperator{.name = "aten::resize_", .refusal = &reasons::resizes, .applies = changes_sizes},
    RefusedOperator{.name = "aten::resize_as_", .refusal = &reasons::resizes, .applies = is_not_of_same_sizes},
    RefusedOperator{.name = "aten::_resize_output_", .refusal = &reasons::resizes, .applies = changes_sizes},
    RefusedOperator{.name = "aten::set_", .refusal = &reasons::replaces_memory},
    RefusedOperator{.name = "inductor::resize_storage_bytes_", .refusal = &reasons::replaces_memory, .is_newer = true},
    RefusedOperator{.name = "aten::from_file", .refusal = &reasons::opens_file},

    RefusedOperator{.name = "c10d::allreduce_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::broadcast_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::reduce_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::allgather_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::reduce_scatter_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::alltoall_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::gather_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::scatter_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::barrier", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::send", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::recv_", .refusal = &reasons::uses_other_library},
    RefusedOperator{.name = "c10d::_allgather_base_", .refusal = &reasons::uses_other_library, .is_newer = true},
    RefusedOperator{.name = "c10d::_reduce_scatter_base_", .refusal = &reasons::uses_other_library, .is_newer = true},
    RefusedOperator{.name = "c10d::alltoall_base_", .refusal = &reasons::uses_other_library, .is_newer = true},
    RefusedOperator{.name = "c10d::allreduce_coalesced_", .refusal = &reasons::uses_other_library, .is_newer = true},
    RefusedOperator{.name = "c10d::allgather_coalesced_", .refusal = &reasons::uses_other_library, .is_newer = true},
    RefusedOperator{.name = "c10d::recv_any_source_", .refusal = &reasons::uses_other_library, .is_newer = true},
    RefusedOperator{.name = "c10d::monitored_barrier_", .refusal = &reasons::uses_other_library, .is_newer = true},
};

/// An operator's name is one object for as long as the operator is registered.
using KnownRefusals = std::unordered_map<const c10::OperatorName*, const RefusedOperator*>;

KnownRefusals find_refused_operators() {
  KnownRefusals found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    for (const auto& each : refused_table) {
      if (each.name != name.name || (each.overload && *each.overload != name.overload_name)) continue;
      if (const auto op = dispatcher.findOp(name)) found.emplace(&op->operator_name(), &each);
    }
  }
  return found;
}

CallArguments call_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return CallArguments(stack).last(op.schema().arguments().size());
}

std::string argument_text(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() ? tensor_text(tensor) : "none";
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    std::string text;
    for (const auto& each : value.toListRef()) text += (text.empty() ? "" : ", ") + argument_text(each);
    return "[" + text + "]";
  }
  if (value.isNone()) return "none";
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

std::span<const RefusedOperator> refused_operators() {
  return refused_table;
}

const Refusal* refusal_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  static const KnownRefusals known = find_refused_operators();
  const auto found = known.find(&op.operator_name());
  if (found == known.end()) [[likely]]
    return nullptr;
  const auto& refused = *found->second;
  return refused.applies == nullptr || refused.applies(call_arguments(op, stack)) ? refused.refusal : nullptr;
}

std::string call_text(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  constexpr std::size_t longest_argument = 80;
  const auto& name = op.operator_name();
  std::string text = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name) + "(";
  bool is_first = true;
  for (const auto& each : call_arguments(op, stack)) {
    if (!std::exchange(is_first, false)) text += ", ";
    text += graph_names::shortened(argument_text(each), longest_argument);
  }
  return text + ")";
}

CaptureError error_of(const Refusal& refusal, std::string context) {
  return {refusal.reason, std::move(context), std::string(refusal.explanation),
          std::vector<std::string>(refusal.hints.begin(), refusal.hints.end())};
}

}  // namespace cohort::recording
