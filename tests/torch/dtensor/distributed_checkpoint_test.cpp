// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints of distributed tensors: each rank writes its parts, and any other mesh, or a process without one, loads
// them, with the same bits.
#include <ATen/ATen.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/dtensor.h>

#include <fstream>
#include <limits>
#include <numeric>
#include <random>

#include "support/spawned.h"
#include "support/temporary.h"
#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/dtensor/laid_out.h"
#include "torch/dtensor/saved_tensors.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

/// Sizes that no mesh divides, fewer rows than ranks, nothing at all, and values whose bits an operation may change.
std::vector<at::Tensor> tensors_of_all_kinds() {
  auto special = at::linspace(-3, 3, 35, at::kFloat).view({7, 5});
  special[0][0] = std::numeric_limits<float>::quiet_NaN();
  special[6][4] = -0.0F;
  special[3][2] = std::numeric_limits<float>::denorm_min();
  return {special,
          at::arange(13, at::kDouble).div(7),
          at::arange(2, at::kLong),
          at::scalar_tensor(-2.5, at::kDouble),
          at::arange(48, at::kFloat).view({4, 6, 2}).sin().to(at::kBFloat16),
          at::arange(24).view({3, 8}).remainder(3).eq(0),
          at::view_as_complex(at::arange(40, at::kFloat).cos().view({5, 4, 2})),
          at::empty({0, 3}, at::kInt),
          at::arange(96, at::kShort).view({16, 6}).t()};
}

/// A way to lay out all of them; an empty mesh stands for plain tensors in one process.
struct Setting {
  Sizes mesh;
  unsigned seed;

  int ranks() const { return static_cast<int>(std::accumulate(mesh.begin(), mesh.end(), 1LL, std::multiplies<>())); }
  Placements placements_of(const at::Tensor& tensor, std::size_t number) const {
    std::mt19937 random(seed * 100 + static_cast<unsigned>(number));
    auto choices = test::placements_of(tensor.dim(), false);
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) choices.push_back(StridedShard(dim, 2 + dim));
    Placements all;
    for (std::size_t dim = 0; dim < mesh.size(); ++dim) all.push_back(choices[random() % choices.size()]);
    return all;
  }
  friend std::ostream& operator<<(std::ostream& out, const Setting& setting) {
    for (const auto size : setting.mesh) out << size << "x";
    return out << " " << setting.seed;
  }
};

void as_ranks_of(const Setting& setting, const GroupBody& body) {
  if (setting.mesh.empty()) return body(nullptr);
  with_torch_threads(setting.ranks(), body);
}

std::vector<at::Tensor> lay_out(const std::vector<at::Tensor>& dense, const Setting& setting,
                                const ProcessGroupPtr& group) {
  if (group == nullptr) {
    std::vector<at::Tensor> copies;
    for (const auto& each : dense) copies.push_back(each.clone());
    return copies;
  }
  const auto mesh = init_device_mesh("cpu", setting.mesh, {}, {.process_group = group});
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    all.push_back(
        distribute_tensor(dense[i], mesh, setting.placements_of(dense[i], i), {.src_data_rank = std::nullopt}));
  }
  return all;
}

std::vector<at::Tensor> zeros_as(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> zeros;
  for (const auto& each : all) zeros.push_back(at::zeros_like(each));
  return zeros;
}

void expect_same_bits(const std::vector<at::Tensor>& all, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(bits_of(local_of(all[i])), bits_of(local_of(expected[i]))) << "tensor " << i;
  }
}

/// Each setting loads what the one before it saved.
void go_through(const std::vector<Setting>& settings,
                const std::function<void(const Setting&, const GroupBody&)>& run) {
  const TemporaryFolder folder;
  const auto dense = tensors_of_all_kinds();
  for (std::size_t step = 0; step < settings.size(); ++step) {
    const auto& setting = settings[step];
    const auto before = folder / ("step-" + std::to_string(step - 1));
    const auto path = folder / ("step-" + std::to_string(step));
    run(setting, [&](const ProcessGroupPtr& group) {
      const auto expected = lay_out(dense, setting, group);
      const auto own = step == 0 ? expected : zeros_as(expected);
      auto checkpoint = checkpoint_of(own);
      if (step > 0) checkpoint.load(before, group);
      expect_same_bits(own, expected);
      checkpoint.save(path, group, sharded);
    });
    ASSERT_FALSE(testing::Test::HasFailure()) << setting << ", step " << step;
  }
}

struct Chain {
  const char* name;
  std::vector<Setting> settings;
  friend std::ostream& operator<<(std::ostream& out, const Chain& chain) { return out << chain.name; }
};
class DistributedCheckpoint : public testing::TestWithParam<Chain> {};

TEST_P(DistributedCheckpoint, BitsStayTheSameFromMeshToMesh) {
  go_through(GetParam().settings, as_ranks_of);
}

INSTANTIATE_TEST_SUITE_P(
    Chains, DistributedCheckpoint,
    testing::Values(Chain{"TwoByTwoToFourByOneToOneProcessAndBack", {{{2, 2}, 1}, {{4, 1}, 2}, {{}, 3}, {{2, 2}, 4}}},
                    Chain{"EveryNumberOfRanks", {{{1}, 5}, {{2}, 6}, {{3}, 7}, {{4}, 8}, {{1}, 9}}},
                    Chain{"OtherPlacementsOnTheSameMesh",
                          {{{2, 2}, 10}, {{2, 2}, 11}, {{2, 2}, 12}, {{2, 2}, 13}, {{2, 2}, 14}}},
                    Chain{"MeshesOfThree", {{{1, 3}, 15}, {{3, 1}, 16}, {{2, 1, 2}, 17}, {{}, 18}}}),
    [](const auto& chain) { return std::string(chain.param.name); });

TEST(DistributedCheckpointProcesses, LoadWhatOthersSaved) {
  const TemporaryFolder folder;
  const Setting before{{2, 2}, 20};
  const Setting after{{4, 1}, 21};
  for (const auto& setting : {before, after}) {
    with_torch_processes(4, [&](const ProcessGroupPtr& group) {
      const auto expected = lay_out(tensors_of_all_kinds(), setting, group);
      const bool is_first = setting.seed == before.seed;
      const auto own = is_first ? expected : zeros_as(expected);
      auto checkpoint = checkpoint_of(own);
      if (!is_first) checkpoint.load(folder / "saved", group);
      expect_same_bits(own, expected);
      checkpoint.save(folder / "saved", group, sharded);
    });
  }
}

/// The bytes of the tensors in each file.
std::vector<std::uint64_t> bytes_in_files(const std::string& path) {
  std::vector<std::uint64_t> bytes;
  for (const auto& file : files_of_folder(path)) {
    bytes.push_back(0);
    for (const auto& tensor : read_header(file).tensors) {
      if (!tensor.name.starts_with("cohort")) bytes.back() += tensor.end - tensor.begin;
    }
  }
  return bytes;
}

TEST(DistributedCheckpoints, EveryElementIsWrittenOnceAndTheRanksWriteAboutTheSame) {
  const TemporaryFolder folder;
  const auto dense = at::arange(64 * 64, at::kFloat).view({64, 64});
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    std::vector<at::Tensor> all;
    for (const auto& placements : {Placements{Shard(0), Shard(1)}, Placements{Replicate(), Shard(0)},
                                   Placements{Shard(1), Replicate()}, Placements{Replicate(), Replicate()}}) {
      for (int i = 0; i < 4; ++i) all.push_back(laid_out(dense, mesh, placements));
    }
    // On a slice, the other row of the mesh has the same parts, and the tensor does not know of it.
    for (int i = 0; i < 4; ++i) all.push_back(laid_out(dense, mesh["tp"], {Shard(0)}));
    checkpoint_of(all).save(folder / "saved", group, sharded);
  });
  const auto bytes = bytes_in_files(folder / "saved");
  const auto total = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  EXPECT_EQ(total, 20 * dense.nbytes());
  for (const auto each : bytes) EXPECT_EQ(each, total / 4);
}

TEST(DistributedCheckpoints, APartWithGapsIsSavedAsSeveralBoxesWhichPythonReads) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto strided = laid_out(at::arange(8, at::kFloat), mesh, {StridedShard(0, 2)});
    const auto columns = laid_out(at::arange(6, at::kLong).view({2, 3}), mesh, {Shard(1)});
    checkpoint_of({strided, columns}).save(folder / "saved", group, sharded);
  });
  std::string answer;
  for (const auto& file : files_of_folder(folder / "saved")) {
    const auto done =
        Spawned({"/usr/bin/python3", COHORT_TORCH_TESTS_FOLDER "/safetensors_reference.py", "read", file}, {}).finish();
    EXPECT_EQ(done.status, 0) << done.output;
    answer += done.output;
  }
  for (const auto* const line :
       {"t0[0:2] F32 [2] [0.0, 1.0]", "t0[2:4] F32 [2] [2.0, 3.0]", "t0[4:6] F32 [2] [4.0, 5.0]",
        "t0[6:8] F32 [2] [6.0, 7.0]", "metadata cohort.shape.t0 [8]", "t1[0:2,0:2] I64 [2, 2] [0, 1, 3, 4]",
        "t1[0:2,2:3] I64 [2, 1] [2, 5]", "metadata cohort.shape.t1 [2, 3]"}) {
    EXPECT_THAT(answer, testing::HasSubstr(line));
  }
}

TEST(DistributedCheckpoints, RanksOutsideTheMeshTakePart) {
  const TemporaryFolder folder;
  const auto dense = at::arange(10, at::kFloat).view({5, 2});
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    for (const std::int64_t ranks : {3, 2, 4}) {  // the first saves, the others load and save
      const auto mesh = init_device_mesh("cpu", {ranks}, {}, {.process_group = group});
      const auto expected = distribute_tensor(dense, mesh, {Shard(0)}, {.src_data_rank = std::nullopt});
      const auto own = ranks == 3 ? at::Tensor(expected) : at::zeros_like(expected);
      if (ranks != 3) checkpoint_of({own}).load(folder / "saved", group);
      EXPECT_EQ(bits_of(local_of(own)), bits_of(local_of(expected))) << ranks;
      checkpoint_of({own}).save(folder / "saved", group, sharded);
    }
  });
  const auto whole = at::zeros_like(dense);
  checkpoint_of({whole}).load(folder / "saved");
  EXPECT_TRUE(whole.equal(dense));
}

/// What this thread has read from files.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string key;
  std::uint64_t bytes = 0;
  file >> key >> bytes;
  return key == "rchar:" ? bytes : 0;
}

TEST(DistributedCheckpoints, ARankReadsTheFilesThatHaveItsParts) {
  const TemporaryFolder folder;
  constexpr std::uint64_t part = std::uint64_t{4} << 20U;
  const auto run = [&](bool saves) {
    with_torch_threads(4, [&](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {4}, {}, {.process_group = group});
      const auto tensor = dtensor::full({4, part}, 3, mesh, {Shard(0)}, at::kByte);
      auto checkpoint = checkpoint_of({tensor});
      if (saves) return checkpoint.save(folder / "saved", group, sharded);
      tensor.zero_();
      const auto before = bytes_read();
      checkpoint.load(folder / "saved", group);
      const auto bytes = bytes_read() - before;
      EXPECT_GE(bytes, 2 * part) << "once to verify its file and once to take from it";
      EXPECT_LT(bytes, 2 * part + part / 2);
      EXPECT_TRUE(tensor.to_local().eq(3).all().item<bool>());
    });
  };
  run(true);
  run(false);
}

TEST(DistributedCheckpoints, FilesOfOneProcessGoIntoDistributedTensors) {
  const TemporaryFolder folder;
  const auto dense = tensors_of_all_kinds();
  checkpoint_of(dense).save(folder / "file");
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto expected = lay_out(dense, {{2, 2}, 30}, group);
    const auto own = zeros_as(expected);
    for (const bool each_reads : {false, true}) {
      auto checkpoint = checkpoint_of(own);
      checkpoint.load(folder / "file", group, {.all_ranks_read = each_reads});
      expect_same_bits(own, expected);
      for (const auto& each : own) each.zero_();
    }
    // What rank 0 holds as a whole can be saved in one file.
    const auto mesh = init_device_mesh("cpu", {2, 2}, {}, {.process_group = group});
    auto replicated = laid_out(dense[1], mesh, {Replicate(), Replicate()});
    checkpoint_of({replicated}).save(folder / "replicated", group);
    const auto split = laid_out(dense[1], mesh, {Replicate(), Shard(0)});
    EXPECT_ERROR(CheckpointError, checkpoint_of({split}).save(folder / "split", group), "save with {.sharded = true}");
  });
  const auto whole = at::zeros_like(dense[1]);
  checkpoint_of({whole}).load(folder / "replicated");
  EXPECT_EQ(bits_of(whole), bits_of(dense[1]));
}

TEST(DistributedCheckpoints, LoadingIsAChangeInPlaceToAutograd) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto weight = dtensor::ones({4}, mesh, {Shard(0)}, at::TensorOptions().requires_grad(true));
    auto checkpoint = checkpoint_of({weight});
    checkpoint.save(folder / "saved", group, sharded);
    const auto loss = (weight * weight).sum();
    const auto before = weight._version();
    const auto* const part = DTensor(weight).to_local().data_ptr();
    checkpoint.load(folder / "saved", group);
    EXPECT_GT(weight._version(), before);
    EXPECT_EQ(DTensor(weight).to_local().data_ptr(), part);
    EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
    EXPECT_THROW(loss.backward(), c10::Error) << "modified by an inplace operation";
    (weight * weight).sum().backward();
    EXPECT_TRUE(DTensor(weight.grad()).to_local().eq(2).all().item<bool>());
  });
}

TEST(DistributedCheckpoints, ASecretSignsEveryRanksFile) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  const auto dense = at::arange(20, at::kFloat).view({5, 4});
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto rows = laid_out(dense, mesh, {Shard(0)});
    Checkpoint signs({.random_state = false, .secret = secret});
    signs.add("t0", rows);
    signs.save(folder / "saved", group, sharded);
    const auto columns = at::zeros_like(laid_out(dense, mesh, {Shard(1)}));
    Checkpoint loads({.random_state = false, .secret = secret});
    loads.add("t0", columns);
    loads.load(folder / "saved", group);
    EXPECT_TRUE(DTensor(columns).full_tensor().equal(dense));
    Checkpoint other({.random_state = false, .secret = Secret::generate()});
    other.add("t0", columns);
    EXPECT_ERROR(CheckpointError, other.load(folder / "saved", group), "is not signed with this secret");
  });
}

}  // namespace
}  // namespace cohort::test
