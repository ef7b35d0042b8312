// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes over a group: groups and places of all shapes, and how they are made.
#include <cohort/torch/mesh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "torch/mesh/mesh_ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Shapes of up to three dimensions with this many ranks.
std::vector<Sizes> shapes_of(std::int64_t ranks) {
  std::vector<Sizes> shapes{{ranks}};
  for (std::int64_t a = 1; a <= ranks; ++a) {
    if (ranks % a != 0) continue;
    shapes.push_back({a, ranks / a});
    for (std::int64_t b = 1; b <= ranks / a; ++b) {
      if (ranks / a % b == 0) shapes.push_back({a, b, ranks / a / b});
    }
  }
  return shapes;
}

class Mesh : public ::testing::TestWithParam<Ranks> {};

TEST_P(Mesh, OfEveryShape) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    for (const auto& shape : shapes_of(pg->size())) {
      const auto mesh = init_device_mesh("cpu", shape);
      EXPECT_EQ(mesh.shape(), shape);
      EXPECT_EQ(mesh.ndim(), std::ssize(shape));
      EXPECT_EQ(mesh.size(), pg->size());
      EXPECT_EQ(mesh.rank(), pg->rank());
      EXPECT_EQ(mesh.device_type(), "cpu");
      EXPECT_TRUE(mesh.dim_names().empty());
      std::vector<int> all(static_cast<std::size_t>(pg->size()));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(mesh.ranks(), RankArray(shape, all)) << "row-major";
      expect_sound(mesh);
    }
  });
}

TEST_P(Mesh, InAnyOrderOfRanks) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    std::vector<int> ranks(static_cast<std::size_t>(pg->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::reverse(ranks.begin(), ranks.end());
    std::rotate(ranks.begin(), ranks.begin() + 1, ranks.end());
    const DeviceMesh line("cpu", ranks);
    expect_sound(line);
    EXPECT_EQ(line.group() == pg, pg->size() <= 1 || ranks == pg->global_ranks()) << "another order, another group";
    for (const auto& shape : shapes_of(pg->size())) expect_sound(DeviceMesh("cpu", RankArray(shape, ranks)));
  });
}

TEST_P(Mesh, ADimensionOfAllRanksIsTheGroupItself) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    const MeshOptions over{.process_group = pg};
    EXPECT_EQ(init_device_mesh("cpu", {pg->size()}, {}, over).group(), pg);
    const auto mesh = init_device_mesh("cpu", {1, pg->size()}, {"one", "all"}, over);
    EXPECT_EQ(mesh.group("all"), pg);
    EXPECT_EQ(mesh.group("one") == pg, pg->size() == 1);
    EXPECT_EQ(mesh.group("one")->size(), 1);
    const auto own = init_device_mesh("cpu", {pg->size()}, {"all"},
                                      {.process_group = pg, .backend_override = {{"all", {.options = Options{}}}}});
    EXPECT_NE(own.group(), pg) << "unless its backend is overridden";
    EXPECT_EQ(own.group()->name(), pg->name());
    expect_sound(own);
  });
}

TEST_P(Mesh, OfSomeRanksLeavesTheOthersOutside) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    if (pg->size() == 1) return;
    const ProcessGroupGuard scope(pg);
    const auto last = pg->size() - 1;
    const auto mesh = init_device_mesh("cpu", {1, last}, {"a", "b"});
    std::vector<int> all(static_cast<std::size_t>(last));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(mesh.ranks(), RankArray({1, last}, all)) << "known outside too";
    EXPECT_EQ(mesh.rank(), pg->rank());
    const auto flat = mesh.flatten();
    const auto slice = mesh["b"];
    if (pg->rank() != last) {
      expect_sound(mesh);
      expect_sound(flat);
      expect_sound(slice);
      return;
    }
    EXPECT_EQ(mesh.coordinate(), nullptr);
    EXPECT_TRUE(mesh.all_groups().empty());
    EXPECT_ERROR(Error, mesh.group("b"), "is not in DeviceMesh");
    EXPECT_ERROR(Error, mesh.local_rank(0), "is not in");
    EXPECT_EQ(flat.coordinate(), nullptr);
    EXPECT_ERROR(Error, flat.group(), "is not in");
    EXPECT_ERROR(Error, mesh.group("a_b"), "is not in") << "flattened";
    EXPECT_EQ(slice.shape(), Sizes{last});
    EXPECT_EQ(mesh["a"].shape(), Sizes{1});
    if (last > 1) {
      EXPECT_ERROR(Error, mesh["a"].ranks(), "is not in");
    }
    EXPECT_EQ(mesh["a"], mesh["a"]);
    EXPECT_NE(mesh["a"], mesh["b"]);
  });
}

TEST_P(Mesh, RanksAreThoseOfTheFirstGroup) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    if (pg->size() < 3) return;
    const auto upper = pg->partition({{0}, {2, 1}});
    if (pg->rank() != 1 && pg->rank() != 2) return;
    const auto mesh = init_device_mesh("cpu", {2}, {"x"}, {.process_group = upper});
    EXPECT_EQ(mesh.ranks(), (RankArray{2, 1}));
    EXPECT_EQ(mesh.rank(), pg->rank());
    EXPECT_EQ(mesh.local_rank(), pg->rank() == 2 ? 0 : 1);
    expect_sound(mesh);
    expect_sound(DeviceMesh("cpu", {1, 2}, {}, {.process_group = upper}));
    EXPECT_ERROR(ValueError, DeviceMesh("cpu", {0, 1}, {}, {.process_group = upper}), "rank 0");
  });
}

TEST_P(Mesh, RanksThatDisagreeAreAllTold) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    if (pg->size() == 1) return;
    const ProcessGroupGuard scope(pg);
    const bool is_last = pg->rank() == pg->size() - 1;
    const auto culprit = "rank " + std::to_string(pg->size() - 1);
    const auto disagree = [&](const std::function<void()>& call) {
      EXPECT_THAT(message_of<MismatchError>(call), HasSubstr(culprit));
    };
    disagree([&] { init_device_mesh("cpu", is_last ? Sizes{pg->size(), 1} : Sizes{pg->size()}); });
    disagree([&] { init_device_mesh("cpu", {pg->size()}, {is_last ? "x" : "y"}); });
    disagree([&] {
      const MeshBackends fake{{0, {.backend = "fake"}}};
      init_device_mesh("cpu", {pg->size()}, {}, {.backend_override = is_last ? fake : MeshBackends{}});
    });
    disagree([&] {
      if (is_last) {
        DeviceMesh("cpu", std::vector<int>{1, 0});
      } else {
        DeviceMesh("cpu", std::vector<int>{0, 1});
      }
    });
    // A call that is wrong in itself on one rank only.
    if (is_last) {
      EXPECT_ERROR(AssertionError, DeviceMesh("cpu", {0, 0}), "twice");
    } else {
      disagree([&] { DeviceMesh("cpu", {0, 1}); });
    }
    const auto mesh = init_device_mesh("cpu", {1, pg->size()}, {"a", "b"});
    disagree([&] { mesh.flatten(is_last ? "c" : "d"); });
    disagree([&] { mesh.unflatten(is_last ? 0 : 1, {is_last ? 1 : pg->size()}, {"e"}); });
    if (is_last) {
      EXPECT_ERROR(KeyError, mesh.unflatten("none", {1}, {"e"}), "none");
    } else {
      disagree([&] { mesh.unflatten("a", {1}, {"e"}); });
    }
    expect_sound(mesh);
    EXPECT_EQ(sum_among(pg, 1), pg->size()) << "the group goes on";
  });
}

TEST_P(Mesh, AGroupThatOneRankCannotMakeIsMadeByNone) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    // The backend is known to all ranks, but refuses options on the last one.
    const bool is_last = pg->rank() == pg->size() - 1;
    const Options options{{"simulate_uniform_ranks", is_last ? OptionValue(3) : OptionValue(true)}};
    EXPECT_ERROR(
        Error,
        init_device_mesh("cpu", {pg->size()}, {"x"},
                         {.process_group = pg, .backend_override = {{"x", {.backend = "fake", .options = options}}}}),
        "simulate_uniform_ranks");
    EXPECT_EQ(sum_among(pg, 1), pg->size());
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, Mesh,
                         ::testing::Values(threads(1), threads(2), threads(3), threads(4), threads(8), processes(2),
                                           processes(4)),
                         ::testing::PrintToStringParamName());

TEST(MeshOfThreads, CostsAsManyStepsAsDimensions) {
  with_threads(8, [](const ProcessGroupPtr& pg) {
    const auto before = pg->sequence_number();
    const auto mesh = init_device_mesh("cpu", {2, 2, 2}, {"a", "b", "c"}, {.process_group = pg});
    // Arguments are compared once; each dimension takes one step for its four groups and one to agree that it worked.
    EXPECT_EQ(pg->sequence_number() - before, 1 + 3 * 2);
    const auto slice = mesh[{"a", "b"}];
    EXPECT_EQ(pg->sequence_number() - before, 7) << "slicing is local";
    slice.flatten();
    EXPECT_EQ(pg->sequence_number() - before, 10);
    slice.flatten();
    mesh["a_b"].group();
    EXPECT_EQ(pg->sequence_number() - before, 10) << "made once";
  });
}

TEST(MeshOfThreads, GroupsSayWhatTheyAreFor) {
  with_threads(4, [](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    const auto named = init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    EXPECT_EQ(named.group("dp")->group_desc(), "mesh_dp");
    EXPECT_EQ(named.group(1)->group_desc(), "mesh_tp");
    EXPECT_EQ(init_device_mesh("cpu", {2, 2}).group(1)->group_desc(), "mesh_dim_1");
    const DeviceMesh crossed("cpu", {{3, 1}, {2, 0}}, {"x", "y"});
    EXPECT_THAT(crossed.group("x")->global_ranks(), ::testing::AnyOf(std::vector<int>{3, 2}, std::vector<int>{1, 0}));
    expect_sound(crossed);
  });
}

TEST(MeshOfThreads, DimensionsWithOtherBackends) {
  with_threads(4, [](const ProcessGroupPtr& pg) {
    const Options uniform{{"simulate_uniform_ranks", true}};
    const auto by_name = init_device_mesh(
        "cpu", {2, 2}, {"dp", "tp"},
        {.process_group = pg,
         .backend_override = {{"tp", {.backend = "fake", .options = uniform}}, {0, {.options = Options{}}}}});
    EXPECT_EQ(by_name.group("tp")->name(), "fake");
    EXPECT_EQ(sum_among(by_name.group("tp"), 7), 14);
    EXPECT_EQ(by_name.group("dp")->name(), "thread");
    EXPECT_EQ(by_name.group("tp")->group_desc(), "mesh_tp");
    expect_sound(by_name);
    const auto flat = by_name.flatten("all", {.backend = "fake"});
    EXPECT_EQ(flat.group()->name(), "fake");
    const auto last = by_name.unflatten("tp", {1, 2}, {"a", "b"}, {{"b", {.backend = "fake"}}});
    EXPECT_EQ(last.group("b")->name(), "fake");
    EXPECT_EQ(last.group("a")->name(), "thread");

    const auto override = [&](const MeshBackends& backends) {
      init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = pg, .backend_override = backends});
    };
    EXPECT_ERROR(Error, override({{"pp", {.backend = "fake"}}}), "no dimension \"pp\"");
    EXPECT_ERROR(Error, override({{2, {.backend = "fake"}}}), "no dimension 2");
    EXPECT_ERROR(Error, override({{-3, {.backend = "fake"}}}), "no dimension -3");
    EXPECT_ERROR(Error, override({{1, {.backend = "fake"}}, {"tp", {.backend = "fake"}}}), "twice");
    EXPECT_ERROR(Error, override({{1, {.backend = "fake"}}, {-1, {.backend = "fake"}}}), "twice");
    EXPECT_ERROR(Error, override({{"dp", {}}}), "neither");
    EXPECT_ERROR(Error, override({{"dp", {.backend = "none such"}}}), "none such");
  });
}

TEST(MeshOfThreads, RefusesWhatIsNoMesh) {
  with_threads(4, [](const ProcessGroupPtr& pg) {
    EXPECT_ERROR(Error, init_device_mesh("cpu", {4}), "ProcessGroupGuard") << "no group";
    const ProcessGroupGuard scope(pg);
    EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 3}), "2 x 3 over a group of 4");
    EXPECT_ERROR(Error, init_device_mesh("cpu", {std::int64_t{1} << 40, std::int64_t{1} << 40}), "over a group");
    EXPECT_ERROR(ValueError, init_device_mesh("cpu", {4, 0}), "positive");
    EXPECT_ERROR(ValueError, init_device_mesh("cpu", {-2, -2}), "positive");
    EXPECT_ERROR(ValueError, init_device_mesh("cpu", {}), "at least one dimension");
    EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 2}, {"a"}), "1 names (a) for 2");
    EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 2}, {"a", "a"}), "\"a\"");
    EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 2}, {"a", ""}), "empty");
    EXPECT_ERROR(Error, init_device_mesh("cpu:0", {4}), "without an index");
    EXPECT_ERROR(Error, init_device_mesh("", {4}), "without an index");
    EXPECT_ERROR(ValueError, init_device_mesh("abacus", {4}), "abacus");
    EXPECT_ERROR(Error, init_device_mesh("cuda", {4}), "backends for cpu");
    EXPECT_ERROR(AssertionError, DeviceMesh("cpu", {{0, 1}, {1, 2}}), "rank 1 is twice");
    EXPECT_ERROR(Error, DeviceMesh("cpu", {0, 1, 2, 3, 4}), "over a group of 4");
    EXPECT_ERROR(ValueError, DeviceMesh("cpu", {0, 4}), "rank 4");
    EXPECT_ERROR(ValueError, DeviceMesh("cpu", {0, -1}), "rank -1");
    EXPECT_ERROR(ValueError, DeviceMesh("cpu", std::vector<int>{}), "at least one rank");
    EXPECT_EQ(sum_among(pg, 1), 4);

    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    EXPECT_ERROR(Error, mesh.group(), "2 dimensions: say which");
    EXPECT_ERROR(Error, mesh.local_rank(), "2 dimensions: say which");
    EXPECT_ERROR(IndexError, mesh.group(2), "no dimension 2");
    EXPECT_ERROR(IndexError, mesh.size(-3), "no dimension -3");
    EXPECT_ERROR(IndexError, mesh.local_rank(2), "no dimension 2");
    EXPECT_ERROR(KeyError, mesh.group("pp"), "\"pp\"");
    EXPECT_ERROR(KeyError, mesh.size("pp"), "\"pp\"");
    EXPECT_EQ(mesh.size("tp"), 2);
    EXPECT_EQ(mesh.dim("tp"), 1);
    EXPECT_EQ(to_string(mesh), "DeviceMesh(cpu, dp: 2, tp: 2, [[0, 1], [2, 3]])");
    EXPECT_EQ(to_string(init_device_mesh("cpu", {2, 2})), "DeviceMesh(cpu, 2 x 2, [[0, 1], [2, 3]])");
  });
}

TEST(MeshOfThreads, EqualityAndHash) {
  with_threads(4, [](const ProcessGroupPtr& pg) {
    const ProcessGroupGuard scope(pg);
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const auto copy = mesh;
    EXPECT_EQ(copy, mesh);
    const auto again = init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    EXPECT_EQ(again, mesh) << "by value, although its groups are others";
    EXPECT_NE(again.group("dp"), mesh.group("dp"));
    EXPECT_EQ(again.hash(), mesh.hash());
    EXPECT_EQ(again["tp"], mesh["tp"]);
    EXPECT_EQ(std::hash<DeviceMesh>()(again["tp"]), std::hash<DeviceMesh>()(mesh["tp"]));
    EXPECT_NE(init_device_mesh("cpu", {2, 2}), mesh) << "names";
    EXPECT_NE(init_device_mesh("cpu", {2, 2}, {"dp", "pp"}), mesh) << "names";
    EXPECT_NE(init_device_mesh("cpu", {4, 1}, {"dp", "tp"}), mesh) << "shape";
    EXPECT_NE(DeviceMesh("cpu", {{0, 2}, {1, 3}}, {"dp", "tp"}), mesh) << "ranks";
    EXPECT_NE(mesh["dp"], mesh["tp"]);
    const auto tp = mesh["tp"];
    EXPECT_EQ(mesh["tp"].coordinate(), tp.coordinate()) << "the same object, so that comparing costs nothing";
    EXPECT_EQ((mesh[{"dp", "tp"}].coordinate()), mesh.coordinate());
    const std::unordered_set<DeviceMesh> set{mesh, again, mesh["dp"], mesh["tp"], again["tp"]};
    EXPECT_EQ(set.size(), 3U);
  });
  const ProcessGroupGuard scope(fake_group(0, 4));
  EXPECT_NE(init_device_mesh("cpu", {4}), init_device_mesh("cuda", {4})) << "device type";
}

TEST(MeshOfThreads, TheCurrentMeshOfAThread) {
  EXPECT_ERROR(Error, current_device_mesh(), "MeshScope");
  const ProcessGroupGuard scope(fake_group(1, 4));
  const auto outer = init_device_mesh("cpu", {4});
  const auto inner = init_device_mesh("cpu", {2, 2});
  {
    const MeshScope first(outer);
    EXPECT_EQ(current_device_mesh(), outer);
    {
      const MeshScope second(inner);
      EXPECT_EQ(current_device_mesh(), inner);
      std::thread([] { EXPECT_ERROR(Error, current_device_mesh(), "no current device mesh"); }).join();
    }
    EXPECT_EQ(current_device_mesh(), outer);
  }
  EXPECT_ERROR(Error, current_device_mesh(), "MeshScope");
}

TEST(MeshRankArray, OfListsAndBuffers) {
  EXPECT_EQ((RankArray{0, 1, 2}).shape(), Sizes{3});
  const RankArray grid{{0, 1, 2}, {3, 4, 5}};
  EXPECT_EQ(grid.shape(), (Sizes{2, 3}));
  EXPECT_THAT(grid.ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ((RankArray{{0}, {1}}).shape(), (Sizes{2, 1}));
  EXPECT_EQ((RankArray{{{0, 1}}, {{2, 3}}}).shape(), (Sizes{2, 1, 2}));
  EXPECT_EQ(RankArray(std::vector<std::vector<int>>{{0, 1, 2}, {3, 4, 5}}), grid);
  EXPECT_EQ(RankArray({2, 3}, {0, 1, 2, 3, 4, 5}), grid);
  EXPECT_ERROR(ValueError, (RankArray{{0, 1}, {2}}), "different sizes");
  EXPECT_ERROR(ValueError, (RankArray{{0, 1}, 2}), "different sizes");
  EXPECT_ERROR(ValueError, RankArray(std::vector<std::vector<int>>{{0, 1}, {2}}), "different sizes");
  EXPECT_ERROR(ValueError, RankArray({2, 2}, {0, 1, 2}), "3 ranks do not fill an array of 2 x 2");
  EXPECT_EQ(to_string(grid), "[[0, 1, 2], [3, 4, 5]]");
  EXPECT_THAT(to_string(RankArray(std::vector<int>(1000, 7))), ::testing::EndsWith("7, ...]"));

  const std::vector<std::int64_t> longs{0, 3, 1, 4, 2, 5};
  EXPECT_EQ(RankArray::copy_of({longs.data(), DType::i64, {2, 3}, {1, 2}}), grid) << "strided";
  const std::vector<std::uint8_t> bytes{0, 1, 2};
  EXPECT_EQ(RankArray::copy_of(bytes), (RankArray{0, 1, 2}));
  EXPECT_ERROR(ValueError, RankArray::copy_of(std::vector<std::int64_t>{std::int64_t{1} << 32}), "not a rank");
  EXPECT_ERROR(TypeError, RankArray::copy_of(std::vector<float>{0}), "f32");
  EXPECT_ERROR(ValueError, RankArray::copy_of({longs.data(), DType::i64, {6}, {}, "cuda:0"}), "cuda:0");
}

}  // namespace
}  // namespace cohort::test
