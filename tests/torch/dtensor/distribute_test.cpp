// SPDX-License-Identifier: BSD-3-Clause
//
// Distributing the tensor of one rank: who communicates, and whose values arrive.
#include "torch/dtensor/distribute.h"

#include <cohort/torch/mesh.h>

#include "torch/dtensor/cases.h"
#include "torch/dtensor/collective_log.h"
#include "torch/torch_ranks.h"

namespace cohort::test {

namespace {

using dtensor::distribute_local;
using dtensor::Layout;

class DistributeOn : public testing::TestWithParam<Sizes> {};

/// A mesh dimension communicates only among ranks whose values somebody gets: those that are at the source's index on
/// all later mesh dimensions. So the tensor crosses each mesh dimension once, from the first to the last.
TEST_P(DistributeOn, OnlyRanksThatHandTheValuesOnCommunicate) {
  const auto& shape = GetParam();
  const auto ranks = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const auto sources = *std::min_element(shape.begin(), shape.end());
  with_torch_threads(static_cast<int>(ranks), [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
    CollectiveLog log(mesh.all_groups());
    const auto& place = *mesh.coordinate();
    const auto whole = numbered({12, 12});
    for (std::int64_t source = 0; source < sources; ++source) {
      const bool is_source = std::all_of(place.begin(), place.end(), [&](auto index) { return index == source; });
      for (const auto& placements : all_lists({Replicate(), Shard(0), Shard(1)}, shape.size())) {
        std::vector<OpType> expected;
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
          const bool hands_on = std::all_of(place.begin() + static_cast<std::ptrdiff_t>(dim) + 1, place.end(),
                                            [&](auto index) { return index == source; });
          if (shape[dim] == 1 || !hands_on) continue;
          expected.push_back(placements[dim].is_shard() ? OpType::all_to_all_single : OpType::broadcast);
        }
        // What the other ranks give does not matter, and differs from rank to rank.
        const auto given = is_source ? whole : at::full_like(whole, -1.0 - static_cast<double>(group->rank()));
        const Layout layout{.mesh = mesh, .placements = placements};
        log.take();
        const auto part = distribute_local(given, layout, source);
        EXPECT_EQ(log.take(), expected) << to_string(placements) << " from " << source;
        EXPECT_TRUE(at::equal(part, distribute_local(whole, layout, std::nullopt))) << to_string(placements);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, DistributeOn,
                         testing::Values(Sizes{2}, Sizes{3}, Sizes{2, 2}, Sizes{3, 2}, Sizes{1, 2}, Sizes{2, 2, 2}),
                         [](const auto& each) { return fmt::format("{}", fmt::join(each.param, "x")); });

}  // namespace

}  // namespace cohort::test
