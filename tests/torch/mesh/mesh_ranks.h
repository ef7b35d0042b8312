// SPDX-License-Identifier: BSD-3-Clause
//
// What the tests of meshes share.
#pragma once

#include <cohort/current_group.h>
#include <cohort/torch/mesh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {

using Sizes = std::vector<std::int64_t>;

inline int sum_among(const ProcessGroupPtr& group, int value) {
  std::vector<int> x{value};
  group->all_reduce(x);
  return x[0];
}

inline ProcessGroupPtr fake_group(int rank, int size, const Options& options = {}) {
  return new_group("fake", std::chrono::seconds(5), "cpu", options,
                   {.store = std::make_shared<HashStore>(), .rank = rank, .size = size});
}

/// Checks that this rank's groups are what its place in the mesh says, and that they work.
inline void expect_sound(const DeviceMesh& mesh) {
  const auto* const place = mesh.coordinate();
  ASSERT_NE(place, nullptr);
  ASSERT_EQ(std::ssize(*place), mesh.ndim());
  const auto array = mesh.ranks();
  EXPECT_EQ(array.shape(), mesh.shape());
  EXPECT_EQ(std::ssize(array.ranks()), mesh.size());
  ASSERT_EQ(std::ssize(mesh.all_groups()), mesh.ndim());
  std::int64_t stride = mesh.size();
  std::int64_t position = 0;
  for (std::int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    stride /= mesh.size(dim);
    position += (*place)[static_cast<std::size_t>(dim)] * stride;
  }
  EXPECT_EQ(array.ranks()[static_cast<std::size_t>(position)], mesh.rank());
  stride = mesh.size();
  for (std::int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    stride /= mesh.size(dim);
    const auto index = (*place)[static_cast<std::size_t>(dim)];
    const auto& group = mesh.group(dim);
    EXPECT_EQ(group, mesh.group(dim - mesh.ndim())) << "from the last";
    EXPECT_EQ(group, mesh.all_groups()[static_cast<std::size_t>(dim)]);
    EXPECT_EQ(group->rank(), index);
    EXPECT_EQ(mesh.local_rank(dim), index);
    EXPECT_EQ(group->size(), mesh.size(dim));
    std::vector<int> along;
    int sum = 0;
    for (std::int64_t i = 0; i < mesh.size(dim); ++i) {
      along.push_back(array.ranks()[static_cast<std::size_t>(position + (i - index) * stride)]);
      sum += along.back();
    }
    EXPECT_EQ(group->global_ranks(), along);
    if (group->name() != "fake") {
      EXPECT_EQ(sum_among(group, mesh.rank()), sum);
    }
  }
}

}  // namespace cohort::test
