// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks outside a mesh make the same calls as the others, and get tensors of the same sizes and dtypes with nothing in
// them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "torch/dtensor/rule_table.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Sizes = std::vector<std::int64_t>;
using Stack = torch::jit::Stack;
using Given = std::map<std::string, c10::IValue>;  ///< arguments by their names

at::Tensor fractions(const Sizes& sizes) {
  return torch::linspace(0.1, 0.9, c10::multiply_integers(sizes)).view(sizes).clone();
}
at::Tensor index_zeros(const Sizes& sizes) {
  return torch::zeros(sizes, torch::kLong);
}
at::Tensor truths(const Sizes& sizes) {
  return torch::ones(sizes, torch::kBool);
}
c10::IValue mask_of_three() {
  return c10::List<bool>({true, true, true});
}

/// What the operators of a name are called with where a matrix, 1 or the default would not do.
Given given_for(const std::string& name) {
  const Sizes matrix{4, 4};
  const at::Tensor images = fractions({4, 2, 6, 6});
  const at::Tensor pooled = fractions({4, 2, 3, 3});
  static const std::map<std::string, Given> all{
      {"_conj", {{"self", fractions(matrix).to(at::kComplexFloat)}}},
      {"bmm", {{"self", fractions({2, 4, 4})}, {"mat2", fractions({2, 4, 4})}}},
      {"baddbmm", {{"self", fractions({4, 4})}, {"batch1", fractions({2, 4, 4})}, {"batch2", fractions({2, 4, 4})}}},
      {"dot", {{"self", fractions({4})}, {"tensor", fractions({4})}}},
      {"mv", {{"vec", fractions({4})}}},
      {"clamp", {{"min", 1}}},
      {"clamp.Tensor", {{"min", fractions(matrix)}}},
      {"clamp_", {{"min", 1}}},
      {"clamp_.Tensor", {{"min", fractions(matrix)}}},
      {"fill_.Tensor", {{"value", fractions({})}}},
      {"masked_fill.Tensor", {{"value", fractions({})}}},
      {"masked_fill_.Tensor", {{"value", fractions({})}}},
      {"permute", {{"dims", Sizes{1, 0}}}},
      {"expand", {{"size", Sizes{3, 4, 4}}}},
      {"slice.Tensor", {{"dim", 1}, {"start", 1}, {"end", 3}}},
      {"split.Tensor", {{"split_size", 3}, {"dim", 1}}},
      {"split_with_sizes", {{"split_sizes", Sizes{1, 3}}, {"dim", 1}}},
      {"unbind.int", {{"dim", 1}}},
      {"squeeze", {{"self", fractions({4, 1, 4})}}},
      {"squeeze_", {{"self", fractions({4, 1, 4})}}},
      {"squeeze.dim", {{"self", fractions({4, 1, 4})}}},
      {"squeeze_.dim", {{"self", fractions({4, 1, 4})}}},
      {"squeeze.dims", {{"self", fractions({4, 1, 4})}, {"dim", Sizes{1}}}},
      {"squeeze_.dims", {{"self", fractions({4, 1, 4})}, {"dim", Sizes{1}}}},
      {"transpose.int", {{"dim0", 0}, {"dim1", 1}}},
      {"view", {{"size", Sizes{4, 2, 2}}}},
      {"_unsafe_view", {{"size", Sizes{4, 2, 2}}}},
      {"_reshape_alias", {{"size", Sizes{4, 2, 2}}, {"stride", Sizes{4, 2, 1}}}},
      {"slice_backward", {{"grad_output", fractions({4, 2})}, {"input_sizes", matrix}, {"start", 1}, {"end", 3}}},
      {"select_backward", {{"grad_output", fractions({4})}, {"input_sizes", matrix}}},
      {"_softmax_backward_data", {{"input_dtype", at::kFloat}}},
      {"_log_softmax_backward_data", {{"input_dtype", at::kFloat}}},
      {"nll_loss_forward", {{"target", index_zeros({4})}, {"ignore_index", -100}}},
      {"nll_loss_backward",
       {{"grad_output", fractions({})},
        {"target", index_zeros({4})},
        {"ignore_index", -100},
        {"total_weight", fractions({})}}},
      {"mse_loss_backward", {{"grad_output", fractions({})}}},
      {"native_layer_norm", {{"normalized_shape", Sizes{4}}, {"weight", fractions({4})}, {"bias", fractions({4})}}},
      {"native_layer_norm_backward",
       {{"normalized_shape", Sizes{4}},
        {"mean", fractions({4, 1})},
        {"rstd", fractions({4, 1})},
        {"weight", fractions({4})},
        {"bias", fractions({4})},
        {"output_mask", mask_of_three()}}},
      {"embedding", {{"indices", index_zeros({3, 2})}}},
      {"embedding_dense_backward",
       {{"grad_output", fractions({3, 2, 4})},
        {"indices", index_zeros({3, 2})},
        {"num_weights", 5},
        {"padding_idx", -1}}},
      {"convolution",
       {{"input", images},
        {"weight", fractions({3, 2, 3, 3})},
        {"bias", fractions({3})},
        {"stride", Sizes{2, 2}},
        {"padding", Sizes{1, 1}},
        {"dilation", Sizes{1, 1}},
        {"output_padding", Sizes{0, 0}}}},
      {"convolution_backward",
       {{"grad_output", fractions({4, 3, 3, 3})},
        {"input", images},
        {"weight", fractions({3, 2, 3, 3})},
        {"bias_sizes", Sizes{3}},
        {"stride", Sizes{2, 2}},
        {"padding", Sizes{1, 1}},
        {"dilation", Sizes{1, 1}},
        {"output_padding", Sizes{0, 0}},
        {"output_mask", mask_of_three()}}},
      {"max_pool2d_with_indices", {{"self", images}, {"kernel_size", Sizes{2, 2}}}},
      {"max_pool2d_with_indices_backward",
       {{"grad_output", pooled},
        {"self", images},
        {"kernel_size", Sizes{2, 2}},
        {"stride", Sizes{2, 2}},
        {"padding", Sizes{0, 0}},
        {"dilation", Sizes{1, 1}},
        {"indices", index_zeros({4, 2, 3, 3})}}},
      {"avg_pool2d", {{"self", images}, {"kernel_size", Sizes{2, 2}}}},
      {"avg_pool2d_backward",
       {{"grad_output", pooled},
        {"self", images},
        {"kernel_size", Sizes{2, 2}},
        {"stride", Sizes{2, 2}},
        {"padding", Sizes{0, 0}}}},
      {"_adaptive_avg_pool2d", {{"self", images}, {"output_size", Sizes{3, 3}}}},
      {"_adaptive_avg_pool2d_backward", {{"grad_output", pooled}, {"self", images}}},
      {"random_.to", {{"to", 3}}},
      {"random_.from", {{"from", 0}, {"to", 3}}},
      {"new_zeros", {{"size", Sizes{3}}, {"dtype", at::kLong}}},
      {"new_ones", {{"size", matrix}}},
      {"new_empty", {{"size", matrix}, {"dtype", at::kDouble}}},
      {"new_full", {{"size", Sizes{2, 2}}}},
      {"new_empty_strided", {{"size", Sizes{}}, {"stride", Sizes{}}}},
      {"zeros_like", {{"dtype", at::kLong}}},
      {"rand_like", {{"dtype", at::kDouble}}},
      {"_to_copy", {{"dtype", at::kDouble}}},
      {"index_select", {{"index", index_zeros({2})}}},
      {"gather", {{"index", index_zeros({4, 2})}}},
      {"scatter_add_", {{"index", index_zeros({4, 2})}}},
      {"index_add_", {{"index", index_zeros({2})}, {"source", fractions({4, 2})}}},
      {"flip", {{"dims", Sizes{1}}}},
      {"_local_scalar_dense", {{"self", fractions({})}}},
  };
  const auto found = all.find(name);
  return found == all.end() ? Given{} : found->second;
}

c10::IValue argument_for(const c10::Argument& argument, const std::string& name, const Given& given) {
  const auto found = given.find(argument.name());
  if (found != given.end()) {
    return found->second.isTensor() ? c10::IValue(found->second.toTensor().clone()) : found->second;
  }
  if (argument.default_value()) return *argument.default_value();
  const auto kind = argument.type()->kind();
  if (kind == c10::TypeKind::TensorType) {
    if (argument.name() == "mask" || argument.name() == "condition") return truths({4, 4});
    return name.starts_with("bitwise") ? index_zeros({4, 4}) : fractions({4, 4});
  }
  if (kind == c10::TypeKind::OptionalType) return {};
  if (kind == c10::TypeKind::BoolType) return false;
  if (kind == c10::TypeKind::FloatType) return 0.5;
  if (kind != c10::TypeKind::ListType) return 1;
  if (argument.type()->castRaw<c10::ListType>()->getElementType()->kind() != c10::TypeKind::TensorType) return Sizes{1};
  return c10::List<at::Tensor>({fractions({4, 4}), fractions({4, 4})});
}

Stack arguments_of(const c10::OperatorHandle& op, const std::string& name) {
  const auto given = given_for(name);
  Stack stack;
  for (const auto& argument : op.schema().arguments()) stack.push_back(argument_for(argument, name, given));
  return stack;
}

Stack distributed(Stack stack, const DeviceMesh& mesh) {
  const auto placed = [&](const at::Tensor& tensor) -> at::Tensor {
    const Placements placements{tensor.dim() == 0 ? Placement(Replicate()) : Placement(Shard(0))};
    return distribute_tensor(tensor, mesh, placements, {.src_data_rank = std::nullopt});
  };
  for (auto& value : stack) {
    if (value.isTensor()) {
      value = placed(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& each : list) each = placed(each);
      value = c10::List<at::Tensor>(list);
    }
  }
  return stack;
}

std::string described(const Stack& results) {
  std::string text;
  const auto describe = [&](const at::Tensor& tensor) {
    text += tensor.defined()
                ? fmt::format("{}[{}] ", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","))
                : "none ";
  };
  for (const auto& each : results) {
    if (each.isTensor()) describe(each.toTensor());
    if (!each.isTensorList()) continue;
    for (const at::Tensor& tensor : each.toTensorVector()) describe(tensor);
  }
  return text;
}

/// On all ranks: empty only where there is no part.
void expect_parts(const Stack& results, bool is_inside, const std::string& name) {
  for (const auto& each : results) {
    const auto tensors = each.isTensorList() ? each.toTensorVector() : std::vector<at::Tensor>{};
    for (const auto& tensor : tensors) EXPECT_EQ(is_inside, DTensor(tensor).to_local().numel() > 0) << name;
    if (each.isTensor() && each.toTensor().defined() && !is_inside) {
      EXPECT_EQ(DTensor(each.toTensor()).to_local().numel(), 0) << name;
    }
  }
}

TEST(RanksOutsideTheMesh, HaveEveryOperator) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const bool is_inside = group->rank() < 2;
    const at::NoGradGuard no_grad;
    for (const auto& [family, ops] : dtensor::rule_table().families()) {
      if (family == "user") continue;
      for (const auto& full_name : ops) {
        const auto dot = full_name.find('.');
        const auto overload = dot == std::string::npos ? std::string() : full_name.substr(dot + 1);
        const auto op = c10::Dispatcher::singleton().findSchema({full_name.substr(0, dot), overload});
        if (!op) continue;  // this libtorch has no such operator
        const auto name = full_name.substr(std::string("aten::").size());
        auto dense = arguments_of(*op, name);
        try {
          op->callBoxed(dense);
        } catch (const c10::Error& error) {
          EXPECT_TRUE(overload.ends_with("out")) << name << ": " << error.what_without_backtrace();
          continue;  // for another dtype of `out`
        }
        auto stack = distributed(arguments_of(*op, name), mesh);
        const bool needs_a_value = name == "_local_scalar_dense" || name == "equal";
        try {
          op->callBoxed(stack);
          EXPECT_TRUE(is_inside || !needs_a_value) << name;
          EXPECT_EQ(described(stack), described(dense)) << name << " on rank " << group->rank();
          expect_parts(stack, is_inside, name);
        } catch (const NotSupportedError& error) {
          // Some variants with an `out` argument are made of operators that have no rule.
          EXPECT_TRUE((needs_a_value && !is_inside) || overload.ends_with("out")) << error.what();
          EXPECT_THAT(error.what(), testing::HasSubstr(needs_a_value ? "this rank is not in the mesh" : "has no rule"));
        } catch (const std::exception& error) {
          ADD_FAILURE() << name << " on rank " << group->rank() << ": " << error.what();
        }
      }
    }
  });
}

TEST(RanksOutsideTheMesh, TrainWithTheOthers) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto images = distribute_tensor(fractions({4, 2, 6, 6}), mesh, {Shard(0)});
    auto weight = distribute_tensor(fractions({4, 2, 3, 3}), mesh);
    weight.requires_grad_();
    const auto pooled = at::max_pool2d(at::conv2d(images, weight), {2, 2});
    EXPECT_EQ(pooled.sizes(), at::IntArrayRef({4, 4, 2, 2}));
    const auto halves = pooled.chunk(2, 1);
    ASSERT_EQ(halves.size(), 2U);
    EXPECT_EQ(halves[1].sizes(), at::IntArrayRef({4, 2, 2, 2}));
    halves[1].mean().backward();
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    EXPECT_EQ(DTensor(weight.grad()).to_local().numel(), group->rank() < 2 ? weight.numel() : 0);
  });
}

}  // namespace
}  // namespace cohort::test
