// SPDX-License-Identifier: BSD-3-Clause
//
// The schemas have no aliasing annotations and the kind CONSERVATIVE, which tells TorchScript's optimiser that an
// operator may have any side effect: it is neither removed when its result is unused, nor merged with an equal call,
// nor moved across another operator. With annotations the kind would be FROM_SCHEMA, and a collective whose result this
// rank does not use would disappear here while the other ranks wait in it: dead-code elimination removes writes, too,
// to tensors that nobody reads. (libtorch refuses annotations together with CONSERVATIVE.) The price is that the schema
// does not say what the forms in "_" and the `out` form write, nor that they and wait_tensor return their argument.
#include "torch/functional/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <array>

#include "torch/functional/kernels.h"

namespace {

// Those that make a new tensor, and are not differentiable: backward through them throws instead of leaving a gradient
// out. The other operators return their argument, with its history.
constexpr std::array new_results{
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "broadcast",
    "shard_dim_alltoall",
};
constexpr std::array own_results{
    "all_reduce_", "all_reduce_coalesced_", "all_gather_into_tensor_out", "broadcast_", "wait_tensor",
};

}  // namespace

TORCH_LIBRARY(cohort, library) {
  const auto define = [&library](const char* schema) {
    library.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE));
  };
  define("all_reduce(Tensor input, str reduce_op, str group) -> Tensor");
  define("all_reduce_(Tensor input, str reduce_op, str group) -> Tensor");
  define("all_reduce_coalesced(Tensor[] inputs, str reduce_op, str group) -> Tensor[]");
  define("all_reduce_coalesced_(Tensor[] inputs, str reduce_op, str group) -> Tensor[]");
  define("all_gather_into_tensor(Tensor input, int group_size, str group) -> Tensor");
  define("all_gather_into_tensor_out(Tensor input, int group_size, str group, *, Tensor out) -> Tensor");
  define("all_gather_into_tensor_coalesced(Tensor[] inputs, int group_size, str group) -> Tensor[]");
  define("reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group) -> Tensor");
  define("reduce_scatter_tensor_coalesced(Tensor[] inputs, str reduce_op, int group_size, str group) -> Tensor[]");
  define("all_to_all_single(Tensor input, int[] output_splits, int[] input_splits, str group) -> Tensor");
  define("broadcast(Tensor input, int root, str group) -> Tensor");
  define("broadcast_(Tensor input, int root, str group) -> Tensor");
  define("shard_dim_alltoall(Tensor input, int gather_dim, int shard_dim, int group_size, str group) -> Tensor");
  define("wait_tensor(Tensor tensor) -> Tensor");
}

TORCH_LIBRARY_IMPL(cohort, CPU, library) {
  cohort::functional::add_kernels(library);
}
TORCH_LIBRARY_IMPL(cohort, CUDA, library) {
  cohort::functional::add_kernels(library);
}
TORCH_LIBRARY_IMPL(cohort, Meta, library) {
  cohort::functional::add_shape_only_kernels(library);
}
TORCH_LIBRARY_IMPL(cohort, Autograd, library) {
  for (const auto* name : new_results) library.impl(name, torch::autograd::autogradNotImplementedFallback());
  for (const auto* name : own_results) library.impl(name, torch::CppFunction::makeFallthrough());
}

namespace cohort::functional::ops {

namespace {

OperatorString string(std::string_view view) {
  return OperatorString(view.data(), view.size());  // NOLINT(modernize-return-braced-init-list): explicit in older ones
}

template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& input, std::string_view reduce_op, std::string_view group) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, OperatorString, OperatorString)>("cohort::all_reduce");
  return op.call(input, string(reduce_op), string(group));
}

at::Tensor all_reduce_(const at::Tensor& input, std::string_view reduce_op, std::string_view group) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, OperatorString, OperatorString)>("cohort::all_reduce_");
  return op.call(input, string(reduce_op), string(group));
}

Tensors all_reduce_coalesced(at::TensorList inputs, std::string_view reduce_op, std::string_view group) {
  static const auto op =
      find_operator<Tensors(at::TensorList, OperatorString, OperatorString)>("cohort::all_reduce_coalesced");
  return op.call(inputs, string(reduce_op), string(group));
}

Tensors all_reduce_coalesced_(at::TensorList inputs, std::string_view reduce_op, std::string_view group) {
  static const auto op =
      find_operator<Tensors(at::TensorList, OperatorString, OperatorString)>("cohort::all_reduce_coalesced_");
  return op.call(inputs, string(reduce_op), string(group));
}

at::Tensor all_gather_into_tensor(const at::Tensor& input, std::int64_t group_size, std::string_view group) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, std::int64_t, OperatorString)>("cohort::all_gather_into_tensor");
  return op.call(input, group_size, string(group));
}

at::Tensor all_gather_into_tensor_out(const at::Tensor& input, std::int64_t group_size, std::string_view group,
                                      const at::Tensor& out) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, std::int64_t, OperatorString, const at::Tensor&)>(
      "cohort::all_gather_into_tensor_out");
  return op.call(input, group_size, string(group), out);
}

Tensors all_gather_into_tensor_coalesced(at::TensorList inputs, std::int64_t group_size, std::string_view group) {
  static const auto op =
      find_operator<Tensors(at::TensorList, std::int64_t, OperatorString)>("cohort::all_gather_into_tensor_coalesced");
  return op.call(inputs, group_size, string(group));
}

at::Tensor reduce_scatter_tensor(const at::Tensor& input, std::string_view reduce_op, std::int64_t group_size,
                                 std::string_view group) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, OperatorString, std::int64_t, OperatorString)>(
      "cohort::reduce_scatter_tensor");
  return op.call(input, string(reduce_op), group_size, string(group));
}

Tensors reduce_scatter_tensor_coalesced(at::TensorList inputs, std::string_view reduce_op, std::int64_t group_size,
                                        std::string_view group) {
  static const auto op = find_operator<Tensors(at::TensorList, OperatorString, std::int64_t, OperatorString)>(
      "cohort::reduce_scatter_tensor_coalesced");
  return op.call(inputs, string(reduce_op), group_size, string(group));
}

at::Tensor all_to_all_single(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                             std::string_view group) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, OperatorString)>(
      "cohort::all_to_all_single");
  return op.call(input, output_splits, input_splits, string(group));
}

at::Tensor broadcast(const at::Tensor& input, std::int64_t root, std::string_view group) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, std::int64_t, OperatorString)>("cohort::broadcast");
  return op.call(input, root, string(group));
}

at::Tensor broadcast_(const at::Tensor& input, std::int64_t root, std::string_view group) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, std::int64_t, OperatorString)>("cohort::broadcast_");
  return op.call(input, root, string(group));
}

at::Tensor shard_dim_alltoall(const at::Tensor& input, std::int64_t gather_dim, std::int64_t shard_dim,
                              std::int64_t group_size, std::string_view group) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, std::int64_t, std::int64_t, std::int64_t, OperatorString)>(
          "cohort::shard_dim_alltoall");
  return op.call(input, gather_dim, shard_dim, group_size, string(group));
}

at::Tensor wait_tensor(const at::Tensor& tensor) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&)>("cohort::wait_tensor");
  return op.call(tensor);
}

}  // namespace cohort::functional::ops
