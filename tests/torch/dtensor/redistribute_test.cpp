// SPDX-License-Identifier: BSD-3-Clause
//
// Redistribution on meshes of real groups, compared with the dense tensor; collectives counted.
#include "torch/dtensor/redistribute_local.h"

#include <cohort/torch/mesh.h>

#include "support/debug_level_scope.h"
#include "support/log_capture.h"
#include "torch/dtensor/cases.h"
#include "torch/dtensor/collective_log.h"
#include "torch/dtensor/distribute.h"
#include "torch/dtensor/plan.h"
#include "torch/torch_ranks.h"

namespace cohort::test {

namespace {

using dtensor::distribute_local;
using dtensor::Layout;
using dtensor::local_offsets;
using dtensor::local_sizes;
using dtensor::redistribute_local;

int ranks_of(const Sizes& shape) {
  return static_cast<int>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

/// What the ranks of a mesh got for a case, and the collectives of rank 0.
struct Outcome {
  Parts parts;
  std::vector<OpType> collectives;
};

/// Runs the cases, which have the same mesh, one after the other.
std::vector<Outcome> run(const std::vector<Case>& cases) {
  const auto& shape = cases.at(0).shape;
  const auto ranks = static_cast<std::size_t>(ranks_of(shape));
  std::vector<Parts> sources;
  std::mt19937 random(11);
  for (const auto& each : cases) {
    sources.push_back(distribute_dense(numbered(each.sizes), each.from, each.shape, random));
  }
  std::vector<Outcome> outcomes(cases.size(), {.parts = Parts(ranks), .collectives = {}});
  with_torch_threads(static_cast<int>(ranks), [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
    CollectiveLog log(mesh.all_groups());
    const auto rank = static_cast<std::size_t>(group->rank());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto& each = cases[i];
      const Layout from{.mesh = mesh, .placements = each.from};
      const Layout to{.mesh = mesh, .placements = each.to};
      const auto& part = sources[i][rank];
      outcomes[i].parts[rank] = redistribute_local(part, each.sizes, from, to);
      const auto collectives = log.take();
      if (rank == 0) outcomes[i].collectives = collectives;
      EXPECT_TRUE(outcomes[i].parts[rank].is_contiguous());
      EXPECT_EQ(outcomes[i].parts[rank].is_alias_of(part), each.from == each.to) << to_string(each);
      EXPECT_EQ(local_sizes(each.sizes, from), part.sizes().vec()) << to_string(each);
    }
  });
  return outcomes;
}

std::string failure_of(const Case& each, const Outcome& outcome) {
  const auto whole = numbered(each.sizes);
  if (!outcome.parts.at(0).defined()) return "no result";
  std::mt19937 random(1);
  const auto is_partial = [](const Placement& placement) { return placement.is_partial(); };
  if (std::any_of(each.to.begin(), each.to.end(), is_partial)) {
    if (!at::allclose(join_dense(outcome.parts, each.to, each.shape, each.sizes), whole)) return "wrong as a whole";
  } else {
    const auto expected = distribute_dense(whole, each.to, each.shape, random);
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      const auto& part = outcome.parts[rank];
      if (part.sizes() != expected[rank].sizes() || !at::allclose(part, expected[rank])) {
        return "wrong on rank " + std::to_string(rank);
      }
    }
  }
  std::vector<OpType> planned;
  for (const auto& step : *dtensor::plan(each.from, each.to, each.shape, each.sizes)) {
    for (const auto op : collectives_of(step.from, step.to)) planned.push_back(op);
  }
  if (whole.numel() > 0 && planned != outcome.collectives) return "other collectives than planned";
  return {};
}

/// A mesh for each call: only for few cases, and to make failing ones simpler.
std::string failure_alone(const Case& each) {
  return failure_of(each, run({each}).at(0));
}

std::vector<Case> allowed(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& each) { return !is_allowed(each); });
  return cases;
}

void expect_right(const std::vector<Case>& cases) {
  const auto outcomes = run(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!failure_of(cases[i], outcomes[i]).empty()) {
      expect_passes(cases[i], failure_alone);
      ADD_FAILURE() << to_string(cases[i]) << ": " << failure_of(cases[i], outcomes[i]);
    }
  }
}

class RedistributeOn : public testing::TestWithParam<Sizes> {};

TEST_P(RedistributeOn, AllPairsOfPlacements) {
  for (const auto& sizes : {Sizes{12, 12}, Sizes{5, 7}, Sizes{3, 1}}) {
    expect_right(allowed(all_cases(GetParam(), sizes, plain_placements)));
  }
}

TEST_P(RedistributeOn, StridedShards) {
  const Placements choices{Replicate(), Shard(0), StridedShard(0, 2), Partial()};
  for (const auto& sizes : {Sizes{12, 3}, Sizes{7, 3}}) expect_right(allowed(all_cases(GetParam(), sizes, choices)));
}

TEST_P(RedistributeOn, RandomTensors) {
  constexpr unsigned seed = 99;
  std::mt19937 random(seed);
  std::vector<Case> cases;
  for (int i = 0; i < 150; ++i) cases.push_back(random_case(GetParam(), random));
  SCOPED_TRACE(fmt::format("seed {}", seed));
  expect_right(cases);
}

TEST_P(RedistributeOn, PartsLieWhereTheOffsetsSay) {
  const auto& shape = GetParam();
  const Sizes sizes{7, 5};
  const auto whole = numbered(sizes);
  with_torch_threads(ranks_of(shape), [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
    for (const auto& placements : all_lists({Replicate(), Shard(0), Shard(1), StridedShard(0, 2)}, shape.size())) {
      const Layout layout{.mesh = mesh, .placements = placements};
      const auto part = distribute_local(whole, layout, std::nullopt);
      const auto offsets = local_offsets(sizes, layout);
      EXPECT_EQ(local_sizes(sizes, layout), part.sizes().vec());
      if (part.numel() > 0) {
        EXPECT_EQ(part[0][0].item<double>(), whole[offsets[0]][offsets[1]].item<double>()) << to_string(placements);
        continue;
      }
      for (std::size_t dim = 0; dim < sizes.size(); ++dim) EXPECT_LE(offsets[dim], sizes[dim]);
    }
  });
}

/// The tensor of one rank reaches all others, whatever theirs hold.
TEST_P(RedistributeOn, DistributesTheTensorOfOneRank) {
  const auto& shape = GetParam();
  const auto source = *std::min_element(shape.begin(), shape.end()) - 1;
  std::vector<Case> cases;  // to `to`
  std::vector<Parts> expected;
  std::mt19937 random(1);
  for (const auto& sizes : {Sizes{12, 12}, Sizes{5, 7}, Sizes{1, 2}, Sizes{0, 3}}) {
    for (const auto& placements : all_lists({Replicate(), Shard(0), Shard(1), StridedShard(1, 2)}, shape.size())) {
      cases.push_back({.shape = shape, .sizes = sizes, .from = {}, .to = placements});
      expected.push_back(distribute_dense(numbered(sizes), placements, shape, random));
    }
  }
  with_torch_threads(ranks_of(shape), [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
    CollectiveLog log(mesh.all_groups());
    const auto& place = *mesh.coordinate();
    const bool is_source = std::all_of(place.begin(), place.end(), [&](auto index) { return index == source; });
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto whole = numbered(cases[i].sizes);
      const Layout layout{.mesh = mesh, .placements = cases[i].to};
      const auto& wanted = expected[i][static_cast<std::size_t>(group->rank())];
      const auto part = distribute_local(is_source ? whole : at::full_like(whole, -1), layout, source);
      EXPECT_TRUE(part.sizes() == wanted.sizes() && at::equal(part, wanted)) << to_string(cases[i]);
      log.take();
      const auto alone = distribute_local(whole, layout, std::nullopt);
      EXPECT_TRUE(alone.sizes() == wanted.sizes() && at::equal(alone, wanted)) << to_string(cases[i]);
      EXPECT_TRUE(alone.is_contiguous() && (whole.numel() == 0 || !alone.is_alias_of(whole)));
      EXPECT_TRUE(log.take().empty());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, RedistributeOn,
                         testing::Values(Sizes{1}, Sizes{2}, Sizes{3}, Sizes{4}, Sizes{2, 2}, Sizes{2, 3}, Sizes{3, 2}),
                         [](const auto& each) { return fmt::format("{}", fmt::join(each.param, "x")); });

TEST(Redistribute, RandomTensorsOnThreeDimensions) {
  constexpr unsigned seed = 5;
  std::mt19937 random(seed);
  std::vector<Case> cases;
  for (int i = 0; i < 150; ++i) cases.push_back(random_case({2, 2, 2}, random));
  SCOPED_TRACE(fmt::format("seed {}", seed));
  expect_right(cases);
}

TEST(Redistribute, WorksBetweenProcesses) {
  with_torch_processes(4, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {}, {.process_group = group});
    const auto whole = numbered({5, 7});
    const Layout nested{.mesh = mesh, .placements = {Shard(0), Shard(0)}};
    const Layout other{.mesh = mesh, .placements = {Shard(1), Replicate()}};
    const auto part = distribute_local(group->rank() == 0 ? whole : at::zeros_like(whole), nested, 0);
    const auto moved = redistribute_local(part, whole.sizes(), nested, other);
    EXPECT_TRUE(at::equal(moved, distribute_local(whole, other, std::nullopt)));
  });
}

TEST(Redistribute, LeavesRanksOutsideTheMeshAlone) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const Layout from{.mesh = mesh, .placements = {Shard(0)}};
    const Layout to{.mesh = mesh, .placements = {Replicate()}};
    const auto part = distribute_local(at::arange(4), from, 0);
    const auto moved = redistribute_local(part, {4}, from, to);
    if (group->rank() < 2) {
      EXPECT_EQ(moved.numel(), 4);
      return;
    }
    EXPECT_TRUE(moved.is_same(part));
    EXPECT_EQ(part.numel(), 0);
    EXPECT_EQ(local_sizes({4}, from), Sizes{0});
    EXPECT_EQ(local_offsets({4}, from), Sizes{0});
  });
}

TEST(Redistribute, RefusesWhatIsNoDistribution) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto whole = at::ones({4});
    const Layout sharded{.mesh = mesh, .placements = {Shard(0)}};
    const Layout partial{.mesh = mesh, .placements = {Partial()}};
    EXPECT_ERROR(Error, redistribute_local(whole, {8}, sharded, partial), "cannot become P(sum)");
    EXPECT_ERROR(Error, distribute_local(whole, partial, 0), "cannot be distributed as Partial");
    EXPECT_ERROR(ValueError, distribute_local(whole, sharded, 2), "mesh dimension 0 has 2 ranks");
  });
}

TEST(Redistribute, LogsWhatAnOperatorCausesInDetailMode) {
  LogCapture log;
  const auto redistribute_for = [](std::string_view why) {
    with_torch_threads(2, [&](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
      const Layout from{.mesh = mesh, .placements = {Shard(0)}};
      const Layout to{.mesh = mesh, .placements = {Replicate()}};
      redistribute_local(at::ones({2, 4}, at::kFloat), {4, 4}, from, to, why);
    });
  };
  redistribute_for("aten::mm");
  EXPECT_THAT(log.text(), testing::Not(testing::HasSubstr("aten::mm")));
  const DebugLevelScope debug(DebugLevel::detail);
  redistribute_for("");
  EXPECT_THAT(log.text(), testing::Not(testing::HasSubstr("redistributes")));
  redistribute_for("aten::mm");
  EXPECT_THAT(log.text(), testing::HasSubstr("aten::mm redistributes an argument [S(0)] -> [R]: 64 bytes"));
}

}  // namespace

}  // namespace cohort::test
