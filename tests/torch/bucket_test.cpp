// SPDX-License-Identifier: BSD-3-Clause
//
// Which gradients travel together.
#include "torch/ddp/bucket_assignment.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ddp::AssignedBucket;
using ddp::TensorInfo;

// --- buckets

TensorInfo floats(std::size_t count) {
  return {.bytes = 4 * count};
}
TensorInfo doubles(std::size_t count) {
  return {.bytes = 8 * count, .dtype = at::kDouble};
}
std::string show(const std::vector<AssignedBucket>& buckets) {
  std::string text;
  for (const auto& bucket : buckets) {
    text += "[";
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      text += (i > 0 ? "," : "") + std::to_string(bucket.parameters[i]);
    }
    text += "]" + std::to_string(bucket.limit) + " ";
  }
  return text;
}

TEST(DdpBuckets, AreAssignedAsInTheSpecification) {
  const auto assign = [](const std::vector<TensorInfo>& tensors, const std::vector<std::size_t>& limits) {
    return show(ddp::assign_buckets(tensors, limits));
  };
  EXPECT_EQ(assign({floats(100), floats(200), floats(100), floats(50)}, {400}), "[0]400 [1]400 [2]400 [3]400 ");
  EXPECT_EQ(assign({floats(50), doubles(25), floats(50), doubles(25), floats(50), doubles(25)}, {400}),
            "[0,2]400 [1,3]400 [4]400 [5]400 ");
  EXPECT_EQ(assign({floats(10), floats(10), floats(10), floats(10)}, {40, 80}), "[0]40 [1,2]80 [3]80 ");
  EXPECT_EQ(assign({floats(50), doubles(25), floats(50), doubles(25), floats(50), doubles(25)}, {200, 400}),
            "[0]200 [1]200 [2,4]400 [3,5]400 ");
}

TEST(DdpBuckets, NeverSpanDevices) {
  std::vector<TensorInfo> tensors(6, floats(50));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(i % 2));
  }
  EXPECT_EQ(show(ddp::assign_buckets(tensors, std::vector<std::size_t>{400})), "[0,2]400 [1,3]400 [4]400 [5]400 ");
}

// PyTorch leaves this order to a hash table.
TEST(DdpBuckets, ThatAreNotFullFollowInTheOrderOfTheirFirstGradients) {
  const std::vector<TensorInfo> tensors{floats(10), doubles(10), {.bytes = 20, .dtype = at::kHalf}, floats(10)};
  const std::vector<std::size_t> limits{400};
  EXPECT_EQ(show(ddp::assign_buckets(tensors, limits, std::vector<std::size_t>{3, 2, 1, 0})),
            "[3,0]400 [2]400 [1]400 ");
  EXPECT_EQ(show(ddp::assign_buckets(tensors, limits, std::vector<std::size_t>{1, 0, 3, 2})),
            "[1]400 [0,3]400 [2]400 ");
}

TEST(DdpBuckets, HoldEachParameterOnceInOneTypeAndCloseAtTheirLimit) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorInfo> tensors(random() % 40);
    for (auto& each : tensors) {
      each = random() % 2 == 0 ? floats(random() % 100) : doubles(random() % 100);
      each.is_sparse = random() % 10 == 0;
    }
    const std::vector<std::size_t> limits{random() % 300 + 1, random() % 900 + 1};
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    const auto buckets = ddp::assign_buckets(tensors, limits, round % 2 == 0 ? order : std::vector<std::size_t>{});
    EXPECT_EQ(ddp::buckets_from_bytes(ddp::to_bytes(buckets), tensors.size()), buckets) << "each once";
    for (const auto& bucket : buckets) {
      std::size_t bytes = 0;
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const auto& tensor = tensors[bucket.parameters[i]];
        EXPECT_EQ(tensor.dtype, tensors[bucket.parameters[0]].dtype);
        EXPECT_TRUE(!tensor.is_sparse || bucket.parameters.size() == 1);
        EXPECT_TRUE(bucket.limit == 0 || bytes < bucket.limit) << "closed by the one that fills it";
        bytes += tensor.bytes;
      }
    }
  }
  EXPECT_ERROR(IndexError, ddp::buckets_from_bytes("", 1), "rank 0");
  EXPECT_ERROR(IndexError, ddp::buckets_from_bytes(ddp::to_bytes(std::vector<AssignedBucket>{{.parameters = {3}}}), 1),
               "parameter that there is not");
}

}  // namespace
}  // namespace cohort::test
