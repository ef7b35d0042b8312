// SPDX-License-Identifier: BSD-3-Clause
//
// The gradients of the _autograd functions, against formulas over what all ranks hold.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/torch/functional.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "torch/functional/async_tensor.h"
#include "torch/functional/functional_ranks.h"
#include "torch/functional/values.h"

namespace cohort::functional {
namespace {

using test::all_values;
using test::values_of;
using test::with_named_threads;

class FunctionalGradients : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FunctionalGradients, ::testing::Values(1, 2, 3, 4));

at::Tensor leaf(const at::Tensor& values) {
  return values.clone().requires_grad_();
}

TEST_P(FunctionalGradients, OfAllGatherAreReducedAndScattered) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto rank = group->rank();
    for (std::int64_t dim = 0; dim < 2; ++dim) {
      const auto mine = leaf(values_of(rank, {2, 3}));
      const auto gathered = all_gather_tensor_autograd(mine, dim, group);
      EXPECT_TRUE(gathered.equal(at::cat(all_values(ranks, {2, 3}), dim)));
      const auto sizes = gathered.sizes().vec();
      (gathered * values_of(rank, sizes)).sum().backward();
      const auto weights = at::stack(all_values(ranks, sizes)).sum(0);
      EXPECT_TRUE(mine.grad().equal(weights.narrow(dim, rank * mine.size(dim), mine.size(dim)))) << dim;
    }
    const auto scalar = leaf(at::scalar_tensor(3.0));
    (all_gather_tensor_autograd(scalar, 0, group) * 2).sum().backward();
    EXPECT_EQ(scalar.grad().item<float>(), 2.0F * static_cast<float>(ranks));
  });
}

TEST_P(FunctionalGradients, OfReduceScatterAreGathered) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto rank = group->rank();
    for (std::int64_t dim = 0; dim < 2; ++dim) {
      const auto mine = leaf(values_of(rank, {2 * ranks, 3 * ranks}));
      const auto part = reduce_scatter_tensor_autograd(mine, "sum", dim, group);
      const auto sizes = part.sizes().vec();
      (part * values_of(rank, sizes)).sum().backward();
      EXPECT_TRUE(mine.grad().equal(at::cat(all_values(ranks, sizes), dim))) << dim;
    }
    const auto mine = leaf(values_of(rank, {ranks}));
    reduce_scatter_tensor_autograd(mine, "sum", 0, group).sum().backward();  // an expanded gradient
    EXPECT_TRUE(mine.grad().equal(at::ones({ranks})));
  });
}

TEST_P(FunctionalGradients, OfAllToAllAreSentBack) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto rank = group->rank();
    // Rank r sends q + 1 rows to rank q.
    std::vector<std::int64_t> sent;
    std::vector<std::int64_t> received;
    for (int peer = 0; peer < ranks; ++peer) {
      sent.push_back(peer + 1);
      received.push_back(rank + 1);
    }
    const auto rows = ranks * (ranks + 1) / 2;
    const auto mine = leaf(values_of(rank, {rows, 2}));
    const auto arrived = all_to_all_single_autograd(mine, received, sent, group);
    ASSERT_EQ(arrived.size(0), ranks * (rank + 1));
    (arrived * values_of(rank, arrived.sizes())).sum().backward();
    std::vector<at::Tensor> gradient;
    for (int peer = 0; peer < ranks; ++peer) {
      gradient.push_back(values_of(peer, {ranks * (peer + 1), 2}).narrow(0, rank * (peer + 1), peer + 1));
    }
    EXPECT_TRUE(mine.grad().equal(at::cat(gradient)));
    const auto even = leaf(values_of(rank, {ranks, 2}));
    (all_to_all_single_autograd(even, {}, {}, group) * (rank + 1)).sum().backward();
    EXPECT_TRUE(even.grad().equal((at::arange(ranks, at::kFloat) + 1).unsqueeze(1).expand({ranks, 2})));
  });
}

TEST_P(FunctionalGradients, HaveGradientsThemselves) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = static_cast<float>(group->size());
    const auto mine = leaf(values_of(group->rank(), {2}));
    const auto loss = all_gather_tensor_autograd(mine, 0, group).pow(3).sum();
    const auto first = torch::autograd::grad({loss}, {mine}, {}, true, /*create_graph=*/true)[0];
    EXPECT_TRUE(first.allclose(3 * ranks * mine.detach().square()));
    first.sum().backward();
    // That is 3 W x^2, of which every rank differentiates its own part.
    EXPECT_TRUE(mine.grad().allclose(6 * ranks * mine.detach()));
  });
}

TEST_P(FunctionalGradients, GoThroughResultsInFlight) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto mine = leaf(values_of(group->rank(), {2, 3}));
    const auto gathered = all_gather_tensor_autograd(mine, 0, group);
    ASSERT_NE(find_async(gathered), nullptr);
    const auto view = gathered.view({-1});
    EXPECT_TRUE(view.requires_grad());
    const auto plain = wait_tensor(view);
    EXPECT_EQ(find_async(plain), nullptr);
    (plain + view.narrow(0, 0, 1)).sum().backward();
    EXPECT_TRUE(mine.grad().defined());
    EXPECT_EQ(mine.grad()[1][2].item<float>(), static_cast<float>(group->size()));
  });
}

TEST(FunctionalsWithoutGradients, ThrowInBackward) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = leaf(at::ones({2}));
    const auto sum = all_reduce(x, "sum", group);
    EXPECT_TRUE(sum.equal(at::full({2}, 2.0)));
    EXPECT_ERROR(NotSupportedError, (sum * 2).sum().backward(), "all_reduce has no gradient");
    EXPECT_FALSE(all_reduce(x.detach(), "sum", group).requires_grad());
    const at::NoGradGuard off;
    EXPECT_FALSE(all_reduce(x, "sum", group).requires_grad());
    EXPECT_TRUE(all_reduce_(x, "sum", group).equal(at::full({2}, 2.0)));
  });
}

}  // namespace
}  // namespace cohort::functional
