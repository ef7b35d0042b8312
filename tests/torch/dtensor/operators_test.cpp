// SPDX-License-Identifier: BSD-3-Clause
//
// Every rule against the dense computation: all placements of all arguments on meshes of one dimension, a sample of
// them on two, forward and backward, with sizes that do not divide evenly and ranks that hold nothing.
#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "torch/dtensor/laid_out.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<std::int64_t>;

struct OperatorCase {
  std::string name;
  /// Made with the same seed on all ranks.
  std::function<Tensors()> inputs;
  std::function<at::Tensor(const Tensors&)> run;
  /// Some placements are refused, with an error that names the operator: views that would have to move data.
  bool may_refuse = false;
  bool has_gradient = true;
};

at::Tensor random(Sizes sizes) {
  return torch::randn(sizes);
}
at::Tensor positive(Sizes sizes) {
  return torch::rand(sizes) + 0.5;
}
at::Tensor indices(Sizes sizes, std::int64_t below) {
  return torch::randint(below, sizes);
}

OperatorCase unary(std::string name, std::function<at::Tensor(const at::Tensor&)> f, Sizes sizes = {5, 4}) {
  return {.name = std::move(name),
          .inputs = [=] { return Tensors{random(sizes)}; },
          .run = [=](const Tensors& x) { return f(x[0]); }};
}
OperatorCase view(std::string name, std::function<at::Tensor(const at::Tensor&)> f, Sizes sizes) {
  auto made = unary(std::move(name), std::move(f), std::move(sizes));
  made.may_refuse = true;
  return made;
}
OperatorCase binary(std::string name, std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> f, Sizes a,
                    Sizes b) {
  return {.name = std::move(name),
          .inputs =
              [=] {
                return Tensors{random(a), positive(b)};
              },
          .run = [=](const Tensors& x) { return f(x[0], x[1]); }};
}

std::vector<OperatorCase> operator_cases() {
  using T = const at::Tensor&;
  std::vector<OperatorCase> cases{
      // pointwise
      unary("neg", [](T x) { return -x; }),
      unary("relu", [](T x) { return x.relu(); }),
      unary("gelu", [](T x) { return at::gelu(x); }),
      unary("exp_of_a_scalar", [](T x) { return x.exp(); }, {}),
      unary("times_a_number", [](T x) { return x * 3 / 7.0; }),
      unary("plus_a_number", [](T x) { return x + 3; }),
      unary("to_double", [](T x) { return x.to(at::kDouble); }),
      unary("clone", [](T x) { return x.clone(); }),
      unary("in_place", [](T x) { return x.clone().mul_(2).add_(x); }),
      binary("add_in_place", [](T a, T b) { return (a * 1).add_(b, 3); }, {5, 4}, {4}),
      unary("masked_fill", [](T x) { return x.masked_fill(x > 0, -1.0); }),
      unary("where", [](T x) { return at::where(x > 0, x, x * 2); }),
      binary("add", [](T a, T b) { return a + b; }, {5, 4}, {5, 4}),
      binary("add_broadcast", [](T a, T b) { return at::add(a, b, 3); }, {5, 4}, {4}),
      binary("sub_broadcast_both", [](T a, T b) { return a - b; }, {5, 1}, {3, 1, 4}),
      binary("mul", [](T a, T b) { return a * b; }, {5, 4}, {5, 4}),
      binary("mul_broadcast", [](T a, T b) { return a * b; }, {5, 4}, {1, 4}),
      binary("div", [](T a, T b) { return a / b; }, {5, 4}, {4}),
      binary("maximum", [](T a, T b) { return at::maximum(a, b); }, {5, 4}, {5, 4}),
      binary("times_a_scalar_tensor", [](T a, T b) { return a * b; }, {5, 4}, {}),
      // matrix products
      binary("mm", [](T a, T b) { return a.mm(b); }, {5, 3}, {3, 4}),
      binary("matmul_3d", [](T a, T b) { return a.matmul(b); }, {2, 5, 3}, {3, 4}),
      binary("bmm", [](T a, T b) { return a.bmm(b); }, {3, 5, 2}, {3, 2, 4}),
      binary("mv", [](T a, T b) { return a.mv(b); }, {5, 3}, {3}),
      binary("dot", [](T a, T b) { return a.dot(b); }, {7}, {7}),
      binary("mm_transposed", [](T a, T b) { return a.t().mm(b.t()); }, {3, 5}, {4, 3}),
      {.name = "addmm",
       .inputs =
           [] {
             return Tensors{random({4}), random({5, 3}), random({3, 4})};
           },
       .run = [](const Tensors& x) { return at::addmm(x[0], x[1], x[2], 2, 3); }},
      {.name = "linear",
       .inputs =
           [] {
             return Tensors{random({2, 5, 3}), random({4, 3}), random({4})};
           },
       .run = [](const Tensors& x) { return at::linear(x[0], x[1], x[2]); }},
      {.name = "baddbmm",
       .inputs =
           [] {
             return Tensors{random({3, 5, 4}), random({3, 5, 2}), random({3, 2, 4})};
           },
       .run = [](const Tensors& x) { return at::baddbmm(x[0], x[1], x[2]); }},
      // reductions
      unary("sum", [](T x) { return x.sum(); }),
      unary("sum_dim", [](T x) { return x.sum(0); }, {5, 4, 3}),
      unary("sum_dims_keep",
            [](T x) {
              return x.sum(at::IntArrayRef({0, -1}), true);
            },
            {5, 4, 3}),
      unary("mean", [](T x) { return x.mean(); }),
      unary("mean_dim", [](T x) { return x.mean(1); }, {5, 4, 3}),
      unary("max", [](T x) { return x.max(); }),
      unary("amax", [](T x) { return x.amax(1); }, {5, 4, 3}),
      unary("minus_max", [](T x) { return -x.max() * 2; }),
      {.name = "sum_of_products",
       .inputs =
           [] {
             return Tensors{random({5, 4})};
           },
       .run = [](const Tensors& x) { return x[0].prod() + x[0].prod().clone(); },
       .has_gradient = false},
      unary("norm", [](T x) { return x.norm(); }),
      {.name = "max_dim",
       .inputs =
           [] {
             return Tensors{random({5, 4})};
           },
       .run = [](const Tensors& x) { return std::get<0>(x[0].max(0)); },
       .has_gradient = false},  // libtorch makes a plain tensor for it
      unary("cumsum", [](T x) { return x.cumsum(0); }),
      // views
      view("t", [](T x) { return x.t(); }, {5, 4}),
      view("permute",
           [](T x) {
             return x.permute({2, 0, 1});
           },
           {5, 4, 3}),
      view("unsqueeze", [](T x) { return x.unsqueeze(-2); }, {5, 4}),
      view("squeeze", [](T x) { return x.squeeze(1); }, {5, 1, 4}),
      view("squeeze_all", [](T x) { return x.squeeze(); }, {4, 1, 3}),
      view("expand",
           [](T x) {
             return x.expand({3, 5, 4});
           },
           {5, 1}),
      view("flatten", [](T x) { return x.flatten(); }, {4, 3}),
      view("split_dim",
           [](T x) {
             return x.view({2, 4, 3});
           },
           {8, 3}),
      view("merge_dims",
           [](T x) {
             return x.view({8, 3});
           },
           {4, 2, 3}),
      view("reshape_of_transposed", [](T x) { return x.t().reshape({-1}); }, {5, 4}),
      view("slice", [](T x) { return x.slice(0, 1, 4); }, {5, 4}),
      view("select", [](T x) { return x.select(1, 2); }, {5, 4}),
      view("chunk",
           [](T x) {
             const auto halves = x.chunk(2, 1);
             return halves[0] * halves[1];
           },
           {5, 4}),
      view("unbind",
           [](T x) {
             const auto columns = x.unbind(1);
             return columns[0] * columns[1] + columns[2] * columns[3];
           },
           {5, 4}),
      // softmax, norm, embedding, convolution, losses
      unary("softmax", [](T x) { return x.softmax(1); }, {5, 7}),
      unary("log_softmax", [](T x) { return x.log_softmax(0); }, {5, 4, 3}),
      {.name = "layer_norm",
       .inputs =
           [] {
             return Tensors{random({3, 5, 4}), random({4}), random({4})};
           },
       .run = [](const Tensors& x) { return at::layer_norm(x[0], {4}, x[1], x[2]); }},
      {.name = "embedding",
       .inputs =
           [] {
             return Tensors{random({7, 4}), indices({5, 3}, 7)};
           },
       .run = [](const Tensors& x) { return at::embedding(x[0], x[1]); }},
      {.name = "conv2d",
       .inputs =
           [] {
             return Tensors{random({5, 2, 6, 6}), random({3, 2, 3, 3}), random({3})};
           },
       .run = [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2]); }},
      {.name = "max_pool2d",
       .inputs =
           [] {
             return Tensors{random({5, 2, 6, 6})};
           },
       .run =
           [](const Tensors& x) {
             return at::max_pool2d(x[0], {2, 2});
           }},
      {.name = "cross_entropy",
       .inputs =
           [] {
             return Tensors{random({5, 7}), indices({5}, 7)};
           },
       .run = [](const Tensors& x) { return at::cross_entropy_loss(x[0], x[1]); }},
      {.name = "cross_entropy_sum",
       .inputs =
           [] {
             return Tensors{random({5, 7}), indices({5}, 7)};
           },
       .run = [](const Tensors& x) { return at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Sum, 3); }},
      {.name = "cross_entropy_each_weighted",
       .inputs =
           [] {
             return Tensors{random({5, 7}), indices({5}, 7), positive({7})};
           },
       .run = [](const Tensors& x) { return at::cross_entropy_loss(x[0], x[1], x[2].detach(), at::Reduction::None); }},
      binary("mse_loss", [](T a, T b) { return at::mse_loss(a, b); }, {5, 4}, {5, 4}),
      // indexing
      {.name = "cat",
       .inputs =
           [] {
             return Tensors{random({5, 4}), random({3, 4})};
           },
       .run =
           [](const Tensors& x) {
             return at::cat({x[0], x[1]}, 0);
           },
       .may_refuse = true},  // its backward is a slice
      {.name = "stack",
       .inputs =
           [] {
             return Tensors{random({5, 4}), random({5, 4})};
           },
       .run =
           [](const Tensors& x) {
             return at::stack({x[0], x[1]}, 1);
           }},
      {.name = "gather",
       .inputs =
           [] {
             return Tensors{random({5, 4}), indices({5, 2}, 4)};
           },
       .run = [](const Tensors& x) { return x[0].gather(1, x[1]); },
       .has_gradient = false},
      {.name = "index_select",
       .inputs =
           [] {
             return Tensors{random({5, 4}), indices({3}, 5)};
           },
       .run = [](const Tensors& x) { return x[0].index_select(0, x[1]); },
       .has_gradient = false},
      unary("tril", [](T x) { return x.tril(); }, {3, 4, 4}),
      unary("like", [](T x) { return x * at::ones_like(x) + at::zeros_like(x).fill_(2) + at::full_like(x, 3); }),
      unary("gradient_penalty",
            [](T x) {
              const auto y = x.tanh() * x;
              if (!y.requires_grad()) return y;
              return torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0] * x;
            }),
  };
  return cases;
}

std::string described(const OperatorCase& what, const std::vector<Placements>& placements) {
  std::ostringstream text;
  text << what.name;
  for (const auto& each : placements) text << " " << to_string(each);
  return text.str();
}

/// Leaves that require gradients, as far as they can have any.
Tensors leaves_of(const Tensors& tensors, bool has_gradient) {
  Tensors leaves;
  for (const auto& each : tensors) {
    auto leaf = each.detach();
    if (has_gradient && each.is_floating_point()) leaf.requires_grad_();
    leaves.push_back(leaf);
  }
  return leaves;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(actual.to(at::kDouble), expected.to(at::kDouble), 1e-4, 1e-5)) << what << "\nexpected\n"
                                                                                          << expected << "\nactual\n"
                                                                                          << actual;
}

/// Returns whether the placements were refused.
bool compare_with_dense(const OperatorCase& what, const Tensors& dense, const DeviceMesh& mesh,
                        const std::vector<Placements>& placements) {
  const auto text = described(what, placements);
  const auto expected_leaves = leaves_of(dense, what.has_gradient);
  const auto expected = what.run(expected_leaves);
  const auto weights = torch::linspace(0.5, 1.5, expected.numel()).view(expected.sizes()).to(expected.scalar_type());

  Tensors distributed;
  for (std::size_t i = 0; i < dense.size(); ++i) distributed.push_back(laid_out(dense[i], mesh, placements[i]));
  const auto leaves = leaves_of(distributed, what.has_gradient);
  try {
    const auto actual = what.run(leaves);
    EXPECT_TRUE(is_dtensor(actual)) << text;
    expect_close(DTensor(actual).full_tensor().detach(), expected.detach(), text);
    if (!what.has_gradient || !expected.requires_grad()) return false;
    (expected * weights).sum().backward();
    (actual * distribute_tensor(weights, mesh, {}, {.src_data_rank = std::nullopt})).sum().backward();
  } catch (const NotSupportedError& error) {
    EXPECT_TRUE(what.may_refuse) << text << ": " << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr("aten::"));
    return true;
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!expected_leaves[i].grad().defined()) continue;
    EXPECT_TRUE(leaves[i].grad().defined()) << text;
    if (!leaves[i].grad().defined()) continue;
    expect_close(DTensor(leaves[i].grad()).full_tensor(), expected_leaves[i].grad(),
                 text + ", gradient of " + std::to_string(i));
  }
  return false;
}

struct MeshCase {
  Sizes shape;
  std::size_t most;  ///< combinations of placements

  std::string name() const {
    std::string text = "Mesh";
    for (const auto size : shape) text += std::to_string(size);
    return text;
  }
  friend std::ostream& operator<<(std::ostream& out, const MeshCase& mesh) { return out << mesh.name(); }
};

class Operators : public testing::TestWithParam<MeshCase> {};

TEST_P(Operators, ComputeWhatDenseTensorsCompute) {
  const auto [shape, most] = GetParam();
  int ranks = 1;
  for (const auto size : shape) ranks *= static_cast<int>(size);
  with_torch_threads(ranks, [&, most_of_case = most](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
    unsigned seed = 0;
    for (const auto& what : operator_cases()) {
      ++seed;
      Tensors dense;
      {
        // The default generator belongs to all threads.
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        torch::manual_seed(seed);
        dense = what.inputs();
      }
      std::size_t refused = 0;
      const auto all = combinations(dense, mesh.ndim(), true, most_of_case, seed);
      for (const auto& placements : all) {
        if (compare_with_dense(what, dense, mesh, placements)) ++refused;
        if (testing::Test::HasFailure()) return;
      }
      if (all.size() > 5) {
        EXPECT_LT(refused, all.size()) << what.name << " was refused for all placements";
      }
    }
  });
}

/// Sanitizers look at the code, for which a few placements will do.
std::vector<MeshCase> mesh_cases() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {{{2}, 5}, {{2, 2}, 2}};
#else
  return {{{1}, 40}, {{2}, 150}, {{3}, 150}, {{2, 2}, 25}, {{3, 2}, 10}};
#endif
}

INSTANTIATE_TEST_SUITE_P(Meshes, Operators, testing::ValuesIn(mesh_cases()),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace cohort::test
