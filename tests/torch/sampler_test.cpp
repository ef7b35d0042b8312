// SPDX-License-Identifier: BSD-3-Clause
//
// Each rank's share of the data.
#include <cohort/current_group.h>
#include <cohort/torch/sampler.h>
#include <torch/torch.h>

#include <map>
#include <set>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Indices = std::vector<std::size_t>;

Indices pass(DistributedSampler& sampler, std::size_t batch = 3) {
  Indices all;
  sampler.reset();
  while (const auto some = sampler.next(batch)) all.insert(all.end(), some->begin(), some->end());
  return all;
}

template <class T>
std::string archived(const T& object) {
  torch::serialize::OutputArchive archive;
  object.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}
template <class T>
void unarchive(T& object, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  object.load(archive);
}

// python3 -c 'from torch.utils.data.distributed import DistributedSampler as S
// for r in range(3):
//   s = S(range(10), num_replicas=3, rank=r, shuffle=True, seed=5, drop_last=False); s.set_epoch(2); print(list(s))'
TEST(DistributedSampler, GivesTheIndicesThatPyTorchGives) {
  const std::array<Indices, 3> padded{{{5, 4, 9, 2}, {0, 1, 6, 5}, {3, 7, 8, 0}}};
  const std::array<Indices, 3> dropped{{{5, 4, 9}, {0, 1, 6}, {3, 7, 8}}};
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler(10, {.rank = rank, .size = 3, .seed = 5});
    sampler.set_epoch(2);
    EXPECT_EQ(pass(sampler), padded[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(sampler.samples_per_rank(), 4U);
    DistributedSampler shorter(10, {.rank = rank, .size = 3, .seed = 5, .drop_last = true});
    shorter.set_epoch(2);
    EXPECT_EQ(pass(shorter), dropped[static_cast<std::size_t>(rank)]);
  }
  for (int rank = 0; rank < 5; ++rank) {  // more ranks than samples: from the start as often as needed
    DistributedSampler tiny(2, {.rank = rank, .size = 5, .shuffle = false});
    EXPECT_EQ(pass(tiny), Indices{static_cast<std::size_t>(rank % 2)});
  }
  DistributedSampler none(0, {.rank = 1, .size = 2});
  EXPECT_TRUE(pass(none).empty());
}

TEST(DistributedSampler, SharesCoverTheDataEvenly) {
  for (const std::size_t samples : {1U, 7U, 12U, 100U, 101U}) {
    for (const int size : {1, 2, 3, 4, 7}) {
      for (const bool drop : {false, true}) {
        std::map<std::size_t, int> seen;
        const auto ranks = static_cast<std::size_t>(size);
        const auto each = drop ? samples / ranks : (samples + ranks - 1) / ranks;
        for (int rank = 0; rank < size; ++rank) {
          DistributedSampler sampler(samples, {.rank = rank, .size = size, .seed = 3, .drop_last = drop});
          const auto mine = pass(sampler);
          EXPECT_EQ(mine.size(), each);
          for (const auto index : mine) ++seen[index];
        }
        if (drop) {
          EXPECT_EQ(seen.size(), each * ranks) << "none twice";
        } else {
          EXPECT_EQ(seen.size(), samples) << "none left out";
        }
        EXPECT_TRUE(seen.empty() || seen.rbegin()->first < samples);
      }
    }
  }
}

TEST(DistributedSampler, ReshufflesByEpochAndSeed) {
  DistributedSampler sampler(50, {.rank = 1, .size = 2, .seed = 1});
  const auto first = pass(sampler);
  EXPECT_EQ(pass(sampler), first) << "the same epoch";
  sampler.set_epoch(1);
  const auto second = pass(sampler);
  EXPECT_NE(second, first);
  DistributedSampler other(50, {.rank = 1, .size = 2, .seed = 2});
  EXPECT_EQ(pass(other), second) << "PyTorch's rule: seed + epoch";
  sampler.set_epoch(0);
  EXPECT_EQ(pass(sampler), first);
}

TEST(DistributedSampler, TakesItsRankFromTheGroup) {
  EXPECT_ERROR(Error, DistributedSampler(4), "DistributedSampler");
  EXPECT_ERROR(ValueError, DistributedSampler(4, {.rank = 2, .size = 2}), "rank 2 of 2");
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const Indices expected = group->rank() == 0 ? Indices{0, 2, 4} : Indices{1, 3, 0};
    DistributedSampler given(5, {.process_group = group, .shuffle = false});
    EXPECT_EQ(pass(given), expected);
    const ProcessGroupGuard scope(group);
    DistributedSampler current(5, {.shuffle = false});
    EXPECT_EQ(pass(current), expected);
  });
}

TEST(DistributedSampler, GoesOnWhereItWasOnAnyNumberOfRanks) {
  for (const int later : {2, 3}) {
    std::multiset<std::size_t> seen;
    std::string saved;
    for (int rank = 0; rank < 2; ++rank) {
      DistributedSampler sampler(23, {.rank = rank, .size = 2, .seed = 9});
      sampler.set_epoch(4);
      sampler.reset();
      for (int batch = 0; batch < 2; ++batch) {
        const auto some = sampler.next(3);
        seen.insert(some->begin(), some->end());
      }
      EXPECT_EQ(sampler.position(), 6U);
      saved = archived(sampler);
      DistributedSampler resumed(23, {.rank = rank, .size = 2, .seed = 9});
      unarchive(resumed, saved);
      EXPECT_EQ(archived(resumed).size(), saved.size()) << "saved again before it began";
      resumed.set_epoch(resumed.epoch());
      // Interrupted once more, after another batch.
      DistributedSampler again(23, {.rank = rank, .size = 2, .seed = 9});
      unarchive(again, saved);
      again.reset();
      const auto another = again.next(2);
      DistributedSampler third(23, {.rank = rank, .size = 2, .seed = 9});
      unarchive(third, archived(again));
      auto in_three = *another;
      for (const auto index : pass(third)) in_three.push_back(index);
      Indices rest;
      while (const auto some = sampler.next(4)) rest.insert(rest.end(), some->begin(), some->end());
      EXPECT_EQ(in_three, rest);
      EXPECT_EQ(pass(resumed), rest) << "as the run that was not interrupted";
      EXPECT_EQ(resumed.epoch(), 4U);
      resumed.set_epoch(5);
      EXPECT_EQ(pass(resumed).size(), 12U) << "the next epoch is a whole one";
    }
    for (int rank = 0; rank < later; ++rank) {
      DistributedSampler sampler(23, {.rank = rank, .size = later, .seed = 9});
      unarchive(sampler, saved);
      for (const auto index : pass(sampler)) seen.insert(index);
    }
    EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), 23U);
    EXPECT_LT(seen.size(), 23U + static_cast<std::size_t>(later)) << "but for those that fill up none comes twice";
  }
  DistributedSampler other(24, {.rank = 0, .size = 2});
  DistributedSampler sampler(23, {.rank = 0, .size = 2});
  EXPECT_ERROR(ValueError, unarchive(other, archived(sampler)), "23 samples");
}

struct Numbers : torch::data::datasets::Dataset<Numbers, std::int64_t> {
  std::int64_t get(std::size_t index) override { return static_cast<std::int64_t>(index); }
  torch::optional<std::size_t> size() const override { return 20; }
};

TEST(DistributedLoader, ShardsAndResumesInsideLibtorchsLoader) {
  for (const std::size_t workers : {0U, 2U}) {
    std::set<std::int64_t> seen;
    for (int rank = 0; rank < 2; ++rank) {
      auto data = make_distributed_loader(Numbers(), {.rank = rank, .size = 2, .seed = 7},
                                          torch::data::DataLoaderOptions(3).workers(workers));
      data.set_epoch(1);
      std::vector<std::vector<std::int64_t>> batches;
      std::string after_two;
      for (auto& batch : data) {
        batches.push_back(batch);
        seen.insert(batch.begin(), batch.end());
        if (workers > 0) data.sampler.trained(batch.size());
        if (batches.size() == 2) after_two = archived(data.sampler);
      }
      ASSERT_EQ(batches.size(), 4U);
      EXPECT_EQ(batches.back().size(), 1U);
      auto resumed = make_distributed_loader(Numbers(), {.rank = rank, .size = 2, .seed = 7},
                                             torch::data::DataLoaderOptions(3).workers(workers));
      unarchive(resumed.sampler, after_two);
      std::vector<std::vector<std::int64_t>> rest;
      for (auto& batch : resumed) rest.push_back(batch);
      EXPECT_EQ(rest, (std::vector{batches[2], batches[3]})) << workers << " workers";
    }
    EXPECT_EQ(seen.size(), 20U);
  }
}

}  // namespace
}  // namespace cohort::test
