// SPDX-License-Identifier: BSD-3-Clause
//
// Rows GC-06 to GC-10 and GC-12 of the specification: meshes, placements and distributed tensors in captured steps.
#include <ATen/ATen.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "torch/capture/guards_support.h"
#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using testing::HasSubstr;

TEST(CaptureRows, Gc06MeshesAreGuardedByEquality) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    const auto equal = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    const auto renamed = init_device_mesh("cpu", {2, 2}, {"pp", "tp"}, {.process_group = group});
    const auto line = init_device_mesh("cpu", {4}, {"dp"}, {.process_group = group});
    int runs = 0;
    auto step = capture([&](const at::Tensor& x, const DeviceMesh& on) {
      ++runs;
      auto y = x * on.size() + static_cast<double>(on.ndim());
      y = y + static_cast<double>(on.size(0)) + static_cast<double>(on.dim_names().front() == "dp");
      y = y + static_cast<double>(on.coordinate()->front()) + on.local_rank(0) + on.rank();
      y = y + static_cast<double>(on.device_type() == "cpu");
      return functional::all_reduce(y, "max", {on, 0}) + 1;
    });
    const auto x = at::ones({2});
    const auto first = step(x, mesh);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(step(x, mesh), first));
    EXPECT_EQ(runs, 2);
    ASSERT_TRUE(mesh == equal);
    EXPECT_TRUE(at::equal(step(x, equal), first));
    EXPECT_EQ(runs, 2) << "an equal mesh is the same";
    step(x, renamed);
    EXPECT_EQ(runs, 3);
    EXPECT_THAT(step.explain(), HasSubstr("argument 2 was DeviceMesh(cpu, dp: 2, tp: 2"));
    step(x, line);
    EXPECT_EQ(runs, 4);
  });
}

TEST(CaptureRows, Gc06TheDeviceTypeOfAMeshIsGuarded) {
  const auto group = fake_group(0, 2);
  const auto on_cpu = init_device_mesh("cpu", {2}, {"dp"}, {.process_group = group});
  const auto on_cuda = init_device_mesh("cuda", {2}, {"dp"}, {.process_group = group});
  int runs = 0;
  auto step = capture([&](const at::Tensor& x, const DeviceMesh& on) {
    ++runs;
    return on.device_type() == "cpu" ? x + 1 : x - 1;
  });
  const auto x = at::ones({2});
  expect_result(step, at::full({2}, 2.0), x, on_cpu);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(step.graph().nodes.size(), 1U) << "the query is no node\n" << step.graph();
  expect_result(step, at::zeros({2}), x, on_cuda);
  EXPECT_EQ(runs, 4);
  EXPECT_THAT(step.explain(), HasSubstr("argument 2 was DeviceMesh(cpu, dp: 2"));
  EXPECT_THAT(step.explain(), HasSubstr("and is DeviceMesh(cuda, dp: 2"));
  expect_result(step, at::full({2}, 2.0), x, on_cpu);
  EXPECT_EQ(runs, 4);
}

TEST(CaptureRows, Gc06MakingMeshesIsRefused) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 1}, {"dp", "tp"}, {.process_group = group});
    auto flattens = capture([&](const at::Tensor& x) { return x * mesh.flatten("flat").size(); });
    EXPECT_ERROR(CaptureError, flattens(at::ones({2})), "unsupported_call");
    auto makes = capture(
        [&](const at::Tensor& x) { return x * init_device_mesh("cpu", {2}, {"dp"}, {.process_group = group}).size(); });
    EXPECT_ERROR(CaptureError, makes(at::ones({2})), "before the step");
    // Slices make no groups.
    auto slices = capture([&](const at::Tensor& x) { return x * mesh["dp"].size(); });
    const auto x = at::ones({2});
    expect_result(slices, at::full({2}, 2.0), x);
  });
}

TEST(CaptureRows, Gc07CollectivesOnAMeshsGroupCarryItsId) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    auto step = capture([&](const at::Tensor& x) {
      const auto y = x + group->rank();
      mesh.group("dp")->all_reduce(y);
      return functional::all_reduce(y, "sum", {mesh, "tp"}) + 1;
    });
    const auto x = at::zeros({2});
    expect_result(step, at::full({2}, 7.0), x);
    std::vector<std::string> groups;
    for (const auto& node : step.graph().nodes) {
      if (node.kind == GraphNode::Kind::collective) groups.push_back(node.group);
    }
    EXPECT_THAT(groups, testing::ElementsAre(mesh.group("dp")->id(), mesh.group("tp")->id()));
  });
}

TEST(CaptureRows, Gc08PlacementsAreConstants) {
  const auto mesh = DeviceMesh::from_group(fake_group(0, 2), "cpu");
  auto step = capture([&](const at::Tensor& x) {
    const Placement placement = Shard(0);
    const auto parts = placement.is_shard() && placement.is_shard(0) && !placement.is_partial() ? 2.0 : 5.0;
    return DTensor::from_local(x * parts, mesh, {placement}).to_local() * static_cast<double>(placement.dim() + 1);
  });
  const auto x = at::ones({2, 2});
  expect_result(step, at::full({2, 2}, 2.0), x);
  // One that changes from step to step without being an argument is refused.
  int calls = 0;
  auto changing = capture([&](const at::Tensor& y) {
    const Placement placement = Shard(++calls % 2);
    return DTensor::from_local(y, mesh, {placement}).redistribute({Replicate()}).to_local() * 1;
  });
  try {
    for (int i = 0; i < 6; ++i) changing(x);
    FAIL() << "the step was captured";
  } catch (const CaptureError& error) {
    EXPECT_EQ(error.reason(), CaptureRefusal::changing_operators);
  }
}

/// One that changes when the step has been recorded is seen by a verification, and by nothing else.
TEST(CaptureRows, Gc08APlacementThatChangesLaterIsFoundByVerifying) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = DeviceMesh::from_group(group, "cpu");
    for (const std::size_t every : {0U, 5U}) {
      Placement placement = Shard(0);
      auto step =
          capture([&](const at::Tensor& y) { return DTensor::from_local(y, mesh, {placement}).full_tensor() * 1; },
                  {.verify_every = every});
      const auto x = at::ones({2, 2});
      for (int i = 0; i < 3; ++i) EXPECT_EQ(step(x).sizes(), (std::vector<std::int64_t>{4, 2}));
      placement = Shard(1);
      EXPECT_EQ(step(x).sizes(), (std::vector<std::int64_t>{4, 2})) << "as recorded";
      if (every == 0) continue;
      EXPECT_ERROR(CaptureError, step(x), "from_local");
      for (int i = 0; i < 4; ++i) EXPECT_EQ(step(x).sizes(), (std::vector<std::int64_t>{2, 4}));
    }
  });
}

TEST(CaptureRows, Gc09PlacementsAreGuardedByEquality) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = DeviceMesh::from_group(group, "cpu");
    int runs = 0;
    auto step = capture([&](const at::Tensor& x, const Placements& placements) {
      ++runs;
      return DTensor::from_local(x, mesh, placements).full_tensor() * 1;
    });
    const auto x = at::ones({2, 3});
    const auto sizes_with = [&](const Placements& placements) {
      at::Tensor result;
      for (int i = 0; i < 3; ++i) result = step(x, placements);
      return result.sizes().vec();
    };
    EXPECT_EQ(sizes_with({Shard(0)}), (std::vector<std::int64_t>{4, 3}));
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(sizes_with({Shard(1)}), (std::vector<std::int64_t>{2, 6}));
    EXPECT_EQ(runs, 4);
    EXPECT_THAT(step.explain(), HasSubstr("argument 2 was [S(0)] and is [S(1)]"));
    EXPECT_EQ(sizes_with({Partial("max")}), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(sizes_with({Partial("min")}), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(runs, 8) << "the reduction counts";
    EXPECT_EQ(sizes_with({Shard(0)}), (std::vector<std::int64_t>{4, 3}));
    EXPECT_EQ(runs, 8);
  });
}

TEST(CaptureRows, Gc09PlacementsOfResultsSurviveAReplay) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = DeviceMesh::from_group(group, "cpu");
    for (const auto& placement :
         Placements{Partial("max"), Partial("avg"), StridedShard(0, 2), Shard(1), Replicate()}) {
      auto step =
          capture([&](const at::Tensor& x) -> at::Tensor { return DTensor::from_local(x * 2, mesh, {placement}); });
      const auto x = at::ones({4, 2}) * (group->rank() + 1);
      for (int i = 0; i < 4; ++i) {
        const DTensor result(step(x));
        EXPECT_EQ(result.placements(), Placements{placement});
        EXPECT_EQ(result.device_mesh(), mesh);
        EXPECT_TRUE(at::equal(result.to_local(), x * 2));
        if (placement == Partial("max")) {
          EXPECT_TRUE(at::equal(result.full_tensor(), at::full({4, 2}, 4.0)));
        }
      }
    }
  });
}

/// Neither the sizes nor the strides follow from the parts: one rank has fewer rows.
TEST(CaptureRows, Gc10SizesAndStridesOfFromLocalMayBeArguments) {
  using Lengths = std::vector<std::int64_t>;
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = DeviceMesh::from_group(group, "cpu");
    int runs = 0;
    auto step = capture([&](const at::Tensor& x, const Lengths& sizes, const Lengths& strides) {
      ++runs;
      const auto whole = DTensor::from_local(x * 2, mesh, {Shard(0)}, {.sizes = sizes, .strides = strides});
      return std::pair<at::Tensor, at::Tensor>(whole, whole.full_tensor() + 1);
    });
    Numbers numbers(3);  // the same on both ranks
    const auto call = [&](std::int64_t rows, bool is_row_major) {
      const auto before = runs;
      const Lengths sizes{rows, 2};
      const auto strides = is_row_major ? Lengths{2, 1} : Lengths{1, rows};
      const auto first = (rows + 1) / 2;
      for (int i = 0; i < 4; ++i) {
        const auto all = numbers(sizes);
        const auto part = group->rank() == 0 ? all.narrow(0, 0, first) : all.narrow(0, first, rows - first);
        const auto x = is_row_major ? part : part.t().contiguous().t();
        const auto [distributed, full] = step(x, sizes, strides);
        expect_same_bits(full, all * 2 + 1, step.explain());
        const DTensor result(distributed);
        EXPECT_EQ(result.sizes(), sizes);
        EXPECT_EQ(result.strides(), strides);
        EXPECT_EQ(result.placements(), Placements{Shard(0)});
        expect_same_bits(result.to_local(), x * 2, "this rank's part");
      }
      return runs - before;
    };
    EXPECT_EQ(call(3, true), 2);
    EXPECT_EQ(call(5, true), 2);
    EXPECT_THAT(step.explain(), HasSubstr("argument 2 was [3, 2, ] and is [5, 2, ]"));
    EXPECT_EQ(call(5, false), 2);
    EXPECT_THAT(step.explain(), HasSubstr("argument 3 was [2, 1, ] and is [1, 5, ]"));
    EXPECT_EQ(call(3, true), 0);
    EXPECT_EQ(call(5, true), 0);
    EXPECT_EQ(step.recordings(), 3U);
    EXPECT_EQ(count_nodes(step.graph(), "from_local"), 1U) << step.graph();
  });
}

TEST(CaptureRows, Gc12DistributedArgumentsAreGuardedByTheirSpec) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {"tp"}, {.process_group = group});
    const auto equal = init_device_mesh("cpu", {2}, {"tp"}, {.process_group = group});
    const auto other = init_device_mesh("cpu", {2}, {"dp"}, {.process_group = group});
    int runs = 0;
    auto step = capture([&](const at::Tensor& x) -> at::Tensor {
      ++runs;
      return DTensor(x * 2).full_tensor() + 1;
    });
    const auto call = [&](const DeviceMesh& on, Placements placements, at::ScalarType dtype = at::kFloat,
                          bool has_gradient = false) {
      const auto before = runs;
      const auto plain = at::arange(8, dtype).view({4, 2}).set_requires_grad(has_gradient);
      const auto x = distribute_tensor(plain, on, std::move(placements));
      for (int i = 0; i < 3; ++i) expect_same_bits(step(x), (plain * 2 + 1).detach(), step.explain());
      return runs - before;
    };
    EXPECT_EQ(call(mesh, {Shard(0)}), 2);
    EXPECT_EQ(call(equal, {Shard(0)}), 0);
    EXPECT_EQ(call(mesh, {Shard(1)}), 2);
    EXPECT_EQ(call(mesh, {Replicate()}), 2);
    EXPECT_EQ(call(other, {Shard(0)}), 2);
    EXPECT_EQ(call(mesh, {Shard(0)}, at::kDouble), 2);
    EXPECT_EQ(call(mesh, {Shard(0)}, at::kFloat, true), 2);
    EXPECT_EQ(call(mesh, {Shard(0)}), 0);
    auto plain = capture([](const at::Tensor& x) { return is_dtensor(x) ? x + 1 : x * 1; });
    plain(at::ones({4, 2}));
    plain(distribute_tensor(at::ones({4, 2}), mesh));
    EXPECT_EQ(plain.recordings(), 2U) << "a plain tensor of these sizes is none";
  });
}

}  // namespace
}  // namespace cohort::test
