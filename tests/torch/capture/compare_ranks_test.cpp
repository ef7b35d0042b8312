// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/compare_ranks.h"

#include <cohort/torch/capture.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using ::testing::HasSubstr;

/// All-reduces of so many floats each.
Graph all_reduces(const std::string& group, int ranks, const std::vector<std::size_t>& elements) {
  Graph graph;
  for (const auto each : elements) {
    graph.nodes.push_back({.kind = GraphNode::Kind::collective,
                           .name = "all_reduce",
                           .operands = {{"dtype", {}, false, "f32"}, {"op", {}, false, "sum"}},
                           .group = group,
                           .group_size = ranks,
                           .bytes = 4 * each});
  }
  return graph;
}

TEST(ComparisonOfRanks, NamesTheFirstDifferenceOnAllRanks) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    recording::RankComparison ranks;
    const std::vector groups{group};
    EXPECT_NO_THROW(ranks.compare(groups, all_reduces(group->id(), 3, {8, 4})));
    const bool is_other = group->rank() == 2;
    try {
      ranks.compare(groups, all_reduces(group->id(), 3, {8, is_other ? 6U : 4U, 2}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CaptureError& error) {
      EXPECT_EQ(error.reason(), CaptureRefusal::different_ranks);
      EXPECT_THAT(error.what(), HasSubstr("collective 1"));
      EXPECT_THAT(
          error.what(),
          HasSubstr("ank 0 issues all_reduce f32 sum, 16 bytes there, and rank 2 all_reduce f32 sum, 24 bytes"));
    }
    EXPECT_THROW(
        ranks.compare(groups, all_reduces(group->id(), 3,
                                          is_other ? std::vector<std::size_t>{8} : std::vector<std::size_t>{8, 9})),
        CaptureError);
  });
}

/// Otherwise a rank that records again alone would wait for its peers.
TEST(ComparisonOfRanks, ExchangesASequenceOnce) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    recording::RankComparison ranks;
    ranks.compare(std::vector{group}, all_reduces(group->id(), 2, {8}));
    if (group->rank() == 0) ranks.compare(std::vector{group}, all_reduces(group->id(), 2, {8}));
  });
}

TEST(ComparisonOfRanks, LetsOneRankRecordASmallerBatchAlone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto mean = capture([&](const at::Tensor& x) {
      auto sum = x.sum(0);
      group->all_reduce(sum);
      return sum;
    });
    for (int i = 0; i < 6; ++i) {
      const int rows = group->rank() == 1 && i >= 3 ? 2 : 4;
      EXPECT_TRUE(at::equal(mean(torch::full({rows, 3}, i)), torch::full({3}, i * (i >= 3 ? 6 : 8))));
    }
    EXPECT_EQ(mean.recordings(), group->rank() == 1 ? 2U : 1U);
  });
}

}  // namespace
}  // namespace cohort::test
