// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes from meshes: slices, flattened, divided and concatenated ones; and meshes out of groups.
#include <cohort/torch/mesh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "torch/mesh/mesh_ranks.h"

namespace cohort::test {
namespace {

using ::testing::ElementsAre;

/// The sub-array of a 2 x 2 x 2 mesh that contains `rank`, computed by hand.
RankArray within(int rank, const std::vector<int>& dims) {
  const std::vector<int> strides{4, 2, 1};
  int base = rank;
  for (const int dim : dims)
    base -= rank / strides[static_cast<std::size_t>(dim)] % 2 * strides[static_cast<std::size_t>(dim)];
  std::vector<int> ranks{base};
  for (const int dim : dims) {
    std::vector<int> more;
    for (const int each : ranks) more.insert(more.end(), {each, each + strides[static_cast<std::size_t>(dim)]});
    ranks = more;
  }
  return {Sizes(dims.size(), 2), ranks};
}

TEST(MeshSlices, OfThreeDimensions) {
  with_threads(8, [](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    const auto mesh = init_device_mesh("cpu", {2, 2, 2}, {"pp", "dp", "tp"});
    const int me = pg->rank();
    const auto before = pg->sequence_number();
    EXPECT_EQ(mesh["pp"].ranks(), within(me, {0}));
    EXPECT_EQ(mesh["dp"].ranks(), within(me, {1}));
    EXPECT_EQ(mesh["tp"].ranks(), within(me, {2}));
    EXPECT_EQ((mesh[{"pp", "dp"}].ranks()), within(me, {0, 1}));
    EXPECT_EQ((mesh[{"pp", "tp"}].ranks()), within(me, {0, 2}));
    EXPECT_EQ((mesh[{"dp", "tp"}].ranks()), within(me, {1, 2}));
    EXPECT_EQ((mesh[{"pp", "dp", "tp"}]), mesh);
    EXPECT_EQ((mesh[{"pp", "tp"}]["tp"]), mesh["tp"]) << "slices of slices";
    EXPECT_EQ((mesh.slice({"dp", "tp"}).group("tp")), mesh.group("tp")) << "groups are shared";
    EXPECT_EQ((mesh[{"pp", "tp"}].dim_names()), (std::vector<std::string>{"pp", "tp"}));
    EXPECT_EQ(pg->sequence_number(), before) << "nothing is communicated";
    EXPECT_EQ(mesh["tp"].local_rank(), me % 2);
    EXPECT_EQ(mesh["tp"].rank(), me);
    for (const auto& slice : {mesh["pp"], mesh[{"pp", "tp"}], mesh[{"dp", "tp"}]}) expect_sound(slice);

    EXPECT_ERROR(KeyError, mesh["cp"], "\"cp\"");
    EXPECT_ERROR(KeyError, (mesh[{"dp", "cp"}]), "\"cp\"");
    EXPECT_ERROR(KeyError, (mesh[{"tp", "dp"}]), "not in the order");
    EXPECT_ERROR(KeyError, mesh["tp"]["dp"], "\"dp\"") << "not of that slice";
    EXPECT_ERROR(KeyError, mesh.slice({}), "without dimensions");
    EXPECT_ERROR(Error, (mesh[{"tp", "tp"}]), "\"tp\"");
    EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 4})["tp"], "no names");
  });
}

TEST(MeshSlices, Flattened) {
  with_threads(8, [](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    const auto mesh = init_device_mesh("cpu", {2, 2, 2}, {"pp", "dp", "tp"});
    const int me = pg->rank();
    const auto all = mesh.flatten();
    EXPECT_EQ(all.dim_names(), std::vector<std::string>{"pp_dp_tp"});
    EXPECT_EQ(all.group(), pg) << "all ranks in their order";
    expect_sound(all);
    const auto far = mesh[{"pp", "tp"}].flatten("outer");
    EXPECT_THAT(far.ranks().ranks(), ElementsAre(me & 2, (me & 2) + 1, (me & 2) + 4, (me & 2) + 5));
    EXPECT_EQ(far.group()->group_desc(), "mesh_outer");
    expect_sound(far);
    const auto near = mesh[{"dp", "tp"}].flatten();
    expect_sound(near);

    // They can be found again by name.
    EXPECT_EQ(mesh.group("outer"), far.group());
    EXPECT_EQ(mesh["pp"].group("outer"), far.group()) << "also from a slice";
    EXPECT_EQ(mesh["outer"], far);
    EXPECT_EQ((mesh[{"pp", "tp"}]["outer"]), far);
    EXPECT_EQ((mesh[{"pp", "tp"}].flatten("outer")).group(), far.group());
    const auto mixed = mesh[{"pp", "dp_tp"}];
    EXPECT_EQ(mixed.shape(), (Sizes{2, 4}));
    EXPECT_EQ(mixed.group("dp_tp"), near.group());
    expect_sound(mixed);
    EXPECT_ERROR(KeyError, (mesh[{"dp_tp", "pp"}]), "not in the order");
    EXPECT_ERROR(Error, (mesh[{"dp_tp", "tp"}]), "share ranks");
    EXPECT_ERROR(Error, (mesh[{"dp", "dp_tp"}]), "share ranks");
    EXPECT_ERROR(KeyError, mesh["pp"]["dp_tp"], "\"dp_tp\"") << "not within that slice";

    EXPECT_ERROR(ValueError, (mesh[{"pp", "dp"}].flatten("outer")), "another flattened");
    EXPECT_ERROR(ValueError, (mesh[{"pp", "dp"}].flatten("tp")), "already");
    EXPECT_EQ(mesh["tp"].flatten(), mesh["tp"]);
    EXPECT_EQ(mesh["tp"].flatten("tp"), mesh["tp"]);
    const auto renamed = mesh["tp"].flatten("model");
    EXPECT_EQ(renamed.group(), mesh.group("tp"));
    EXPECT_EQ(renamed.dim_names(), std::vector<std::string>{"model"});
    const auto unnamed = init_device_mesh("cpu", {2, 4});
    EXPECT_ERROR(Error, unnamed.flatten(), "no names");
    EXPECT_EQ(unnamed.flatten("x").group("x"), pg);
    expect_sound(mesh);
  });
}

TEST(MeshSlices, Unflattened) {
  with_threads(8, [](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    const auto line = init_device_mesh("cpu", {8}, {"world"});
    const auto cube = line.unflatten("world", {2, 2, 2}, {"pp", "dp", "tp"});
    EXPECT_EQ(cube, init_device_mesh("cpu", {2, 2, 2}, {"pp", "dp", "tp"}));
    EXPECT_EQ(cube.group("dp")->group_desc(), "mesh_dp");
    expect_sound(cube);
    const auto wide = cube.unflatten(-1, {2, 1}, {"a", "b"});
    EXPECT_EQ(wide.shape(), (Sizes{2, 2, 2, 1}));
    EXPECT_EQ(wide.group("a"), cube.group("tp")) << "the same ranks";
    EXPECT_EQ(wide.group("pp"), cube.group("pp"));
    expect_sound(wide);
    const auto grid = init_device_mesh("cpu", {2, 4}).unflatten(1, {2, 2});
    EXPECT_EQ(grid, init_device_mesh("cpu", {2, 2, 2}));
    expect_sound(grid);
    expect_sound(init_device_mesh("cpu", {8}).unflatten(0, {4, 2}, {"x", "y"}));

    // A slice, where every copy is divided.
    const auto slice = init_device_mesh("cpu", {4, 2}, {"dp", "tp"})["dp"].unflatten("dp", {2, 2}, {"a", "b"});
    EXPECT_EQ(slice.size(), 4);
    expect_sound(slice);
    const auto outer = cube[{"pp", "tp"}].flatten();
    expect_sound(outer.unflatten(0, {2, 2}, {"p", "t"}));
    EXPECT_EQ(outer.unflatten(0, {2, 2}, {"p", "t"})["t"].group()->global_ranks(), cube.group("tp")->global_ranks());

    EXPECT_ERROR(ValueError, line.unflatten(0, {2, 3}, {"a", "b"}), "2 x 3");
    EXPECT_ERROR(ValueError, line.unflatten(0, {}, {}), "is not the size");
    EXPECT_ERROR(ValueError, line.unflatten(0, {-2, -4}, {"a", "b"}), "-2 x -4");
    EXPECT_ERROR(IndexError, line.unflatten(1, {8}, {"a"}), "no dimension 1");
    EXPECT_ERROR(KeyError, line.unflatten("x", {8}, {"a"}), "\"x\"");
    EXPECT_ERROR(Error, line.unflatten(0, {2, 4}, {"a"}), "1 names for 2");
    EXPECT_ERROR(Error, cube.unflatten("tp", {2, 1}, {"dp", "b"}), "\"dp\"");
    EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 4}).unflatten(1, {2, 2}, {"a", "b"}), "others have none");
    EXPECT_ERROR(Error, line.unflatten(0, {8}, {"a"}, {{"b", {.backend = "fake"}}}), "no dimension \"b\"");
  });
  // Merged from 2 and 3 with others between, it is no dimension of 3 x 2.
  const ProcessGroupGuard scope(fake_group(5, 12));
  const auto mesh = init_device_mesh("cpu", {2, 2, 3}, {"a", "b", "c"});
  const auto merged = mesh[{"a", "c"}].flatten();
  expect_sound(merged.unflatten(0, {2, 3}, {"x", "y"}));
  EXPECT_ERROR(ValueError, merged.unflatten(0, {3, 2}, {"x", "y"}), "other sizes");
}

TEST(MeshSlices, Concatenated) {
  with_threads(8, [](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    const auto mesh = init_device_mesh("cpu", {2, 2, 2}, {"pp", "dp", "tp"});
    EXPECT_EQ(DeviceMesh::concatenate({mesh["pp"], mesh["tp"]}), (mesh[{"pp", "tp"}]));
    EXPECT_EQ(DeviceMesh::concatenate({mesh}), mesh);
    const auto turned = DeviceMesh::concatenate({mesh["tp"], mesh["pp"]});
    EXPECT_EQ(turned.dim_names(), (std::vector<std::string>{"tp", "pp"}));
    expect_sound(turned);
    expect_sound(turned.flatten("tp_first"));
    // Dimensions that were divided in different ways.
    const auto line = init_device_mesh("cpu", {8}, {"world"});
    const auto first = line.unflatten(0, {2, 4}, {"a", "b"});
    const auto second = line.unflatten(0, {4, 2}, {"c", "d"});
    expect_sound(DeviceMesh::concatenate({first["a"], second["d"]}));
    EXPECT_ERROR(Error, DeviceMesh::concatenate({first["b"], second["d"]}), "share ranks");
    EXPECT_ERROR(Error, DeviceMesh::concatenate({mesh["pp"], line}), "the same mesh");
    EXPECT_ERROR(Error, DeviceMesh::concatenate({mesh["pp"], mesh["pp"]}), "\"pp\"");
    EXPECT_ERROR(ValueError, DeviceMesh::concatenate({}), "no meshes");
  });
}

TEST(MeshFromGroup, OfOneGroup) {
  with_threads(4, [](const ProcessGroupPtr& pg) {
    const auto pair = pg->partition({{0, 1}, {3, 2}});
    const auto before = pg->sequence_number();
    const auto mesh = DeviceMesh::from_group(pair, "cpu", std::nullopt, {"tp"});
    EXPECT_EQ(mesh.group("tp"), pair);
    EXPECT_EQ(mesh.ranks(), pg->rank() < 2 ? (RankArray{0, 1}) : (RankArray{3, 2}));
    EXPECT_EQ(mesh.rank(), pg->rank());
    EXPECT_EQ(pg->sequence_number(), before);
    expect_sound(mesh);
    expect_sound(DeviceMesh::from_group(pg, "cpu", RankArray{0, 1, 2, 3}));
    expect_sound(mesh.unflatten(0, {2, 1}, {"a", "b"}));  // over the group itself
    EXPECT_ERROR(ValueError, DeviceMesh::from_group(pg, "cpu", RankArray{0, 1, 3, 2}), "[0, 1, 3, 2]");
    EXPECT_ERROR(ValueError, DeviceMesh::from_group(ProcessGroupPtr(), "cpu"), "null");
    EXPECT_ERROR(Error, DeviceMesh::from_group(pg, "cpu", std::nullopt, {"a", "b"}), "2 names");
    EXPECT_ERROR(Error, DeviceMesh::from_group(pg, "cpu:1"), "without an index");
    EXPECT_ERROR(Error, DeviceMesh::from_group(pg, "cuda"), "backends for cpu");
  });
}

TEST(MeshFromGroup, OfSeveral) {
  with_threads(4, [](const ProcessGroupPtr& pg) {
    const auto columns = pg->partition({{0, 2}, {1, 3}});
    const auto rows = pg->partition({{0, 1}, {2, 3}});
    const RankArray grid{{0, 1}, {2, 3}};
    const std::vector<ProcessGroupPtr> groups{columns, rows};
    const auto mesh = DeviceMesh::from_group(groups, "cpu", grid, {"dp", "tp"});
    EXPECT_EQ(mesh.group("dp"), columns);
    EXPECT_EQ(mesh.group("tp"), rows);
    EXPECT_EQ(mesh, init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = pg}));
    EXPECT_EQ(mesh["tp"].group(), rows);
    expect_sound(mesh);
    EXPECT_ERROR(Error, mesh.flatten(), "give `world`");
    const auto within_world = DeviceMesh::from_group(groups, "cpu", grid, {"dp", "tp"}, pg);
    EXPECT_EQ(within_world.flatten().group(), pg);
    {
      const ProcessGroupGuard scope(pg);
      EXPECT_EQ(DeviceMesh::from_group(groups, "cpu", grid, {"dp", "tp"}).flatten().group(), pg) << "the current group";
    }

    const auto refuse = [&](const std::vector<ProcessGroupPtr>& of, const RankArray& array,
                            const std::vector<std::string>& names, const std::string& why) {
      EXPECT_ERROR(ValueError, DeviceMesh::from_group(of, "cpu", array, names), why);
    };
    refuse({rows, columns}, grid, {"dp", "tp"}, "the group of dimension 0");
    refuse(groups, RankArray{{1, 0}, {3, 2}}, {"dp", "tp"}, "the group of dimension 1");
    refuse({columns}, grid, {"dp", "tp"}, "1 groups for a mesh of 2");
    refuse(groups, RankArray{0, 1, 2, 3}, {"dp", "tp"}, "2 groups for a mesh of 1");
    refuse(groups, grid, {"dp"}, "1 names for a mesh of 2");
    refuse(groups, grid, {}, "0 names for a mesh of 2");
    refuse({columns, nullptr}, grid, {"dp", "tp"}, "null");
    refuse({}, grid, {"dp", "tp"}, "no groups");
    refuse(groups, RankArray{{4, 5}, {6, 7}}, {"dp", "tp"}, "is not in the mesh");
  });
}

}  // namespace
}  // namespace cohort::test
