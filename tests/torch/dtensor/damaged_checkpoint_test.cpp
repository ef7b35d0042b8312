// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints of distributed tensors that cannot be saved or loaded: an error on all ranks that says why, and nothing
// is changed or lost.
#include <ATen/ATen.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/dtensor.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "support/temporary.h"
#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/dtensor/laid_out.h"
#include "torch/dtensor/saved_tensors.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;

TEST(DistributedCheckpoints, WhatCannotBeSavedIsNamedOnAllRanksAndTheLastOneStays) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    const auto good = laid_out(at::arange(8, at::kFloat), mesh, {Replicate(), Shard(0)});
    checkpoint_of({good}).save(path, group, sharded);
    const auto refused = [&](const std::vector<at::Tensor>& all, const std::string& why) {
      EXPECT_ERROR(CheckpointError, checkpoint_of(all).save(path, group, sharded), why);
    };
    refused({good, laid_out(at::ones({4}), mesh, {Shard(0), Partial()})}, "\"t1\" is [S(0), P(sum)]");
    refused({laid_out(at::ones({4}), mesh, {Partial("max"), Replicate()})}, "redistribute() it");
    // Ranks that save different things.
    const auto more = laid_out(at::ones({4}), mesh, {Shard(0), Replicate()});
    refused(group->rank() == 2 ? std::vector<at::Tensor>{good} : std::vector<at::Tensor>{good, more},
            "\"t1\" is a distributed tensor on rank 0, and rank 2 has none of this name");
    refused({group->rank() == 3 ? laid_out(at::ones({5}), mesh, {Shard(0), Replicate()}) : more},
            "\"t0\" is Float of shape [4] on rank 0, and Float of shape [5] on rank 3");
    refused({mesh.local_rank("dp") == 0 ? laid_out(at::ones({4, 4}), mesh["tp"], {Shard(0)})
                                        : laid_out(at::ones({4, 4}), mesh["tp"], {Shard(1)})},
            "\"t0\": its parts overlap");
    const auto uneven = DTensor::from_local(at::ones({mesh.local_rank("tp") == 0 ? 3 : 1}), mesh["tp"], {Shard(0)});
    refused({uneven}, "\"t0\" is Float of shape [6] on rank 0, and Float of shape [2] on rank 1");
    Checkpoint per_rank;
    per_rank.add_per_rank("mine", at::Tensor(good));
    EXPECT_ERROR(CheckpointError, per_rank.save(path, group, sharded), "use add(), not add_per_rank()");
    // A group that is not all of the mesh.
    const auto half = "half-" + std::to_string(mesh.local_rank("tp"));
    EXPECT_ERROR(CheckpointError, checkpoint_of({good}).save(folder / half, mesh.group("dp"), sharded),
                 "parts of it are missing: 4 of 8 elements are there; all ranks of its mesh must save it");

    const auto own = at::zeros_like(good);
    checkpoint_of({own}).load(path, group);
    EXPECT_EQ(bits_of(local_of(own)), bits_of(local_of(good)));
  });
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 1) << "nothing left behind";
}

TEST(DistributedCheckpoints, WhatDoesNotFitIsNamedAndNothingChanges) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto saved = std::vector<at::Tensor>{laid_out(at::arange(6, at::kFloat), mesh, {Shard(0)}),
                                               laid_out(at::arange(5, at::kFloat), mesh, {Shard(0)})};
    checkpoint_of(saved).save(path, group, sharded);
    const auto good = laid_out(at::ones({6}), mesh, {Shard(0)});
    const auto refused = [&](const at::Tensor& second, const std::string& why) {
      EXPECT_ERROR(CheckpointError, checkpoint_of({good, second}).load(path, group), why);
      EXPECT_TRUE(good.to_local().eq(1).all().item<bool>());
    };
    refused(laid_out(at::ones({4}), mesh, {Shard(0)}), "has shape [5] there and [4] here");
    refused(at::ones({4}), "has shape [5] there and [4] here");
    refused(laid_out(at::ones({5}), mesh, {Partial()}), "the tensor here is [P(sum)]");
    const auto one_fails = group->rank() == 1 ? at::ones({7}) : at::ones({5});
    refused(one_fails, "rank 1 failed");
    const auto other_type = laid_out(at::zeros({5}, at::kDouble), mesh, {Replicate()});
    refused(other_type, "is Float there and Double here: load with {.convert_dtypes = true}");
    checkpoint_of({good, other_type}).load(path, group, {.convert_dtypes = true});
    EXPECT_TRUE(other_type.to_local().equal(at::arange(5, at::kDouble)));
  });
}

/// The parameter is the number of elements: with 8, each of the four ranks has some; with 2, the files of the last
/// ranks have nothing that anybody needs.
class DamagedCheckpoint : public testing::TestWithParam<std::int64_t> {};

TEST_P(DamagedCheckpoint, IsAnErrorForAllWhoeversFileItIs) {
  const auto elements = GetParam();
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  const auto run = [&](const std::function<void(Checkpoint&, const ProcessGroupPtr&, const DTensor&)>& body) {
    with_torch_threads(4, [&](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {4}, {}, {.process_group = group});
      const auto tensor = laid_out(at::ones({elements}), mesh, {Shard(0)});
      auto checkpoint = checkpoint_of({tensor});
      body(checkpoint, group, tensor);
    });
  };
  run([&](auto& checkpoint, const auto& group, const auto&) { checkpoint.save(path, group, sharded); });
  for (const auto& file : files_of_folder(path)) {
    const auto bytes = CheckpointContent::read_file(file, nullptr);
    const auto refused = [&](const std::string& content, const std::string& why) {
      std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
      run([&](auto& checkpoint, const auto& group, const auto& tensor) {
        tensor.fill_(5);
        EXPECT_ERROR(CheckpointError, checkpoint.load(path, group), fs::path(file).filename().string() + ": " + why);
        EXPECT_TRUE(tensor.to_local().eq(5).all().template item<bool>());
      });
      const auto alone = at::zeros({elements});
      EXPECT_ERROR(CheckpointError, checkpoint_of({alone}).load(path), why);
      EXPECT_EQ(Checkpoint::latest(folder / ""), std::nullopt);
    };
    // The last byte of the seal, and of what is before it: the part, or the header.
    for (const std::size_t from_end : {1, 9}) {
      auto flipped = bytes;
      auto& byte = flipped[bytes.size() - from_end];
      byte = static_cast<char>(byte ^ 1);
      refused(flipped, "is ");
    }
    refused(bytes.substr(0, bytes.size() - 1), "is torn");
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
}

INSTANTIATE_TEST_SUITE_P(Sizes, DamagedCheckpoint, testing::Values(8, 2));

TEST(DistributedCheckpointProcesses, ARankThatCannotWriteIsAnErrorForAllAndLosesNothing) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  with_torch_processes(3, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {3}, {}, {.process_group = group});
    const auto tensor = dtensor::ones({300000}, mesh, {Shard(0)});
    auto checkpoint = checkpoint_of({tensor});
    checkpoint.save(path, group, sharded);
    tensor.fill_(2);
    if (group->rank() == 2) {  // its disk is full after 100 kB
      const rlimit limit{100000, RLIM_INFINITY};
      std::signal(SIGXFSZ, SIG_IGN);
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    EXPECT_ERROR(CheckpointError, checkpoint.save(path, group, sharded), "writing failed: File too large");
    EXPECT_ERROR(CheckpointError, checkpoint.save(path, group, sharded), "rank 2");
    checkpoint.load(path, group);
    EXPECT_TRUE(tensor.to_local().eq(1).all().item<bool>());
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 1) << "nothing left behind";
}

/// Dies in the middle of a save.
struct Dying {
  bool now = false;
  StateDict state_dict() const {
    if (now) ::raise(SIGKILL);
    return {};
  }
  void load_state_dict(const StateDict& /*state*/) {}
};

TEST(DistributedCheckpointProcesses, ARankThatDiesLeavesTheLastOneWhole) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  const ProcessStore store;
  std::vector<Process> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto group = join_processes(store, rank, 3);
      const auto mesh = init_device_mesh("cpu", {3}, {}, {.process_group = group});
      const auto tensor = dtensor::ones({30}, mesh, {Shard(0)});
      Dying dying;
      auto checkpoint = checkpoint_of({tensor});
      checkpoint.add("dying", dying);
      checkpoint.save(path, group, sharded);
      tensor.fill_(2);
      dying.now = rank == 1;
      EXPECT_ERROR(DistributedError, checkpoint.save(path, group, sharded), "rank 1");
      return 0;
    });
  }
  EXPECT_EQ(ranks[1].wait(), 128 + SIGKILL);
  EXPECT_EQ(ranks[0].wait(), 0);
  EXPECT_EQ(ranks[2].wait(), 0);
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
  Process reader([&] {
    at::set_num_threads(1);
    const auto tensor = at::zeros({30});
    Checkpoint checkpoint({.random_state = false});
    checkpoint.add("t0", tensor);
    checkpoint.load(path);
    return tensor.eq(1).all().item<bool>() ? 0 : 1;
  });
  EXPECT_EQ(reader.wait(), 0);
}

}  // namespace
}  // namespace cohort::test
