// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Operators on distributed tensors of CUDA memory against the same on the whole tensors, forward and backward.
// The full list is tested on the host; these are the ones that models need, whose kernels and formulas are others on
// CUDA.
#include <cohort/torch/dtensor.h>

#include <functional>
#include <string>
#include <vector>

#include "torch/dtensor/laid_out.h"
#include "torch/gpu/gpu_mesh.h"

namespace cohort::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using DTensorOperatorsOn = OnTheGpuOfSize;

at::Tensor some(const std::vector<std::int64_t>& sizes, double seed = 1) {
  const auto count = c10::multiply_integers(sizes);
  return ((at::arange(count, at::TensorOptions(at::kDouble).device(the_gpu)) + seed) * 0.73).sin().view(sizes);
}
at::Tensor indices(const std::vector<std::int64_t>& sizes, std::int64_t below) {
  const auto count = c10::multiply_integers(sizes);
  return (at::arange(count, at::TensorOptions(at::kLong).device(the_gpu)) * 3 + 1).remainder(below).view(sizes);
}

struct Operator {
  std::string name;
  Tensors arguments;
  std::function<at::Tensor(const Tensors&)> call;
};

std::vector<Operator> operators() {
  using List = const Tensors&;
  return {
      {"matmul", {some({5, 3}), some({3, 4}, 7)}, [](List x) { return at::matmul(x[0], x[1]); }},
      {"linear", {some({2, 5, 3}), some({4, 3}, 7), some({4}, 3)}, [](List x) { return at::linear(x[0], x[1], x[2]); }},
      {"bmm", {some({3, 5, 2}), some({3, 2, 4}, 5)}, [](List x) { return at::bmm(x[0], x[1]); }},
      {"gelu of a sum", {some({5, 4}), some({4}, 2)}, [](List x) { return at::gelu(x[0] + x[1]); }},
      {"softmax", {some({5, 7})}, [](List x) { return at::softmax(x[0], 1); }},
      {"log_softmax", {some({5, 4, 3})}, [](List x) { return at::log_softmax(x[0], 0); }},
      {"layer_norm",
       {some({3, 5, 4}), some({4}, 2), some({4}, 3)},
       [](List x) { return at::layer_norm(x[0], {4}, x[1], x[2]); }},
      {"embedding", {some({7, 4}), indices({5, 3}, 7)}, [](List x) { return at::embedding(x[0], x[1]); }},
      {"cross_entropy", {some({5, 7}), indices({5}, 7)}, [](List x) { return at::cross_entropy_loss(x[0], x[1]); }},
      {"mse_loss", {some({5, 4}), some({5, 4}, 9)}, [](List x) { return at::mse_loss(x[0], x[1]); }},
      {"mean", {some({5, 4, 3})}, [](List x) { return x[0].mean(1); }},
      {"amax", {some({5, 4})}, [](List x) { return x[0].amax(0); }},
      {"transpose and reshape",
       {some({4, 6})},
       [](List x) {
         return x[0].t().reshape({3, 8}).contiguous();
       }},
      {"merge dimensions",
       {some({4, 2, 3})},
       [](List x) {
         return x[0].view({8, 3}) * 2;
       }},
      {"where", {some({5, 4})}, [](List x) { return at::where(x[0] > 0, x[0], x[0] * 3); }},
  };
}

Tensors leaves_of(const Tensors& tensors) {
  Tensors leaves;
  for (const auto& each : tensors) {
    auto leaf = each.detach();
    if (each.is_floating_point()) leaf.requires_grad_();
    leaves.push_back(leaf);
  }
  return leaves;
}

void compare(const Operator& op, const DeviceMesh& mesh, const std::vector<Placements>& placements) {
  auto text = op.name;
  for (const auto& each : placements) text += " " + to_string(each);
  const auto dense = leaves_of(op.arguments);
  const auto expected = op.call(dense);
  const auto weights =
      (at::arange(expected.numel(), expected.options().requires_grad(false)) * 0.1 + 0.5).view(expected.sizes());
  (expected * weights).sum().backward();

  Tensors distributed;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    distributed.push_back(laid_out(op.arguments[i], mesh, placements[i]));
  }
  const auto leaves = leaves_of(distributed);
  const auto actual = op.call(leaves);
  EXPECT_TRUE(at::allclose(DTensor(actual).full_tensor().detach(), expected.detach(), 1e-8, 1e-10)) << text;
  (actual * distribute_tensor(weights, mesh, {}, {.src_data_rank = std::nullopt})).sum().backward();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!dense[i].grad().defined()) continue;
    EXPECT_TRUE(at::allclose(DTensor(leaves[i].grad()).full_tensor(), dense[i].grad(), 1e-8, 1e-10))
        << text << ", gradient of " << i;
  }
}

TEST_P(DTensorOperatorsOn, GpusComputeWhatWholeTensorsGive) {
  on_gpu_meshes(GetParam(), [](const DeviceMesh& mesh) {
    constexpr std::size_t most = 20;  // lists of placements for each operator
    for (const auto& op : operators()) {
      for (const auto& placements : combinations(op.arguments, mesh.ndim(), true, most, 5)) {
        ASSERT_NO_THROW(compare(op, mesh, placements)) << op.name;
        if (HasFailure()) return;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, DTensorOperatorsOn, ::testing::Values(GpuRanks{"nccl", 2}, GpuRanks{"nccl", 4}),
                         name_of);

}  // namespace
}  // namespace cohort::test
