// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients for communication hooks, and what their mean is.
#pragma once

#include <cohort/torch/comm_hook.h>
#include <torch/torch.h>

#include <vector>

#include "torch/torch_ranks.h"

namespace cohort::test {

using Sizes = std::vector<std::int64_t>;

/// A bucket whose gradients are these, in one buffer as the reducer makes it.
struct HookBucket {
  at::Tensor buffer;
  std::vector<at::Tensor> views;

  explicit HookBucket(const std::vector<at::Tensor>& gradients) {
    std::vector<at::Tensor> rows;
    for (const auto& each : gradients) rows.push_back(each.reshape(-1));
    buffer = at::cat(rows);
    std::int64_t offset = 0;
    for (const auto& each : gradients) {
      views.push_back(buffer.narrow(0, offset, each.numel()).view(each.sizes()));
      offset += each.numel();
    }
  }
  /// What the hook makes of it.
  at::Tensor through(const CommHook& hook, std::size_t index = 0, std::size_t count = 1) {
    GradBucket bucket(index, count, buffer, views, views);
    return hook(bucket).value(patient);
  }
};

inline at::Tensor random(const Sizes& sizes, std::uint64_t seed, at::ScalarType type = at::kDouble) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble)).to(type);
}
inline std::uint64_t seed_of(int rank, std::uint64_t step = 0) {
  return static_cast<std::uint64_t>(rank) + 100 * step;
}
/// The mean over ranks of random(sizes, seed_of(rank, step)).
inline at::Tensor mean_of_random(int ranks, const Sizes& sizes, std::uint64_t step = 0,
                                 at::ScalarType type = at::kDouble) {
  auto sum = at::zeros(sizes, type);
  for (int rank = 0; rank < ranks; ++rank) sum += random(sizes, seed_of(rank, step), type);
  return sum / ranks;
}
inline void expect_close(const at::Tensor& mine, const at::Tensor& expected, double tolerance = 1e-10) {
  ASSERT_EQ(mine.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(mine, expected.to(mine.scalar_type()), tolerance, tolerance)) << mine << "\n" << expected;
}

/// 1, 2, ... by rank.
inline at::Tensor own(const ProcessGroupPtr& group) {
  return at::full({2}, group->rank() + 1.0);
}

}  // namespace cohort::test
