// SPDX-License-Identifier: BSD-3-Clause
//
// A sampler that gives each rank its share of a data set, for libtorch's data loaders:
//
//   cohort::DistributedSampler sampler(dataset.size().value(), {.process_group = pg, .seed = 1});
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, batch_size);
//   for (std::size_t epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);                       // another order, the same on all ranks
//     for (auto& batch : *loader) ...
//   }
//
// In one step, auto data = cohort::make_distributed_loader(dataset, {.process_group = pg}, batch_size) makes both:
// data.sampler, and a loader with data.begin() and data.end().
//
// Rule and order are PyTorch's: the indices are shuffled by a generator that is seeded with seed + epoch, the first of
// them are repeated until all ranks get equally many (or, with drop_last, the last are left out), and rank r takes
// every size-th index from the r-th on. All ranks get the same number of samples, so no rank waits in a collective for
// one that has finished.
//
// A sampler is a handle: copies share their state, so the caller can control the one in the loader. save() and load(),
// and state_dict() for a Checkpoint, keep epoch and position. After load() the next pass through the loader continues
// there, on any number of ranks: each sample of the epoch is seen once, apart from those that are repeated.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/state_dict.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/base.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace cohort {

struct DistributedSamplerOptions {
  /// The group whose ranks share the data; null: current_process_group(). Not used if `size` is given.
  ProcessGroupPtr process_group{};
  /// Rank and number of ranks if they are not those of a group (data parallelism within a larger job).
  int rank = 0;
  int size = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leaves out the last samples instead of giving out some twice.
  bool drop_last = false;
};

class COHORT_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// `samples` is the size of the data set. Invalid options (a rank out of range) are a ValueError.
  explicit DistributedSampler(std::size_t samples, const DistributedSamplerOptions& options = {});

  /// Sets the epoch of the next pass; it has an effect when the loader begins it.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;

  /// The number of samples that each rank gets in an epoch.
  std::size_t samples_per_rank() const;
  /// The number of samples that this rank was given in the current pass.
  std::size_t position() const;

  /// A loader with worker threads fetches samples long before they are trained on. With such a loader call this after
  /// each step with the number of this rank's samples in it: save() then writes the samples that were trained on
  /// instead of those that were given out.
  void trained(std::size_t samples);

  // Called by the loader.
  void reset(torch::optional<std::size_t> new_size = {}) override;
  torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  /// A data set of another size is a ValueError.
  void load(torch::serialize::InputArchive& archive) override;
  /// The same for Checkpoint.
  StateDict state_dict() const;
  void check_state_dict(const StateDict& state) const;
  void load_state_dict(const StateDict& state);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A loader and its sampler.
template <class Dataset>
struct DistributedLoader {
  DistributedSampler sampler;
  std::unique_ptr<torch::data::StatelessDataLoader<Dataset, DistributedSampler>> loader;

  void set_epoch(std::size_t epoch) { sampler.set_epoch(epoch); }
  auto begin() { return loader->begin(); }
  auto end() { return loader->end(); }
};

/// A loader that shuffles the data set and gives each rank its share. The data set must know its size.
template <class Dataset>
DistributedLoader<Dataset> make_distributed_loader(Dataset dataset, const DistributedSamplerOptions& sampling = {},
                                                   torch::data::DataLoaderOptions loading = {}) {
  const auto samples = dataset.size();
  TORCH_CHECK(samples.has_value(), "make_distributed_loader: the data set does not know its size");
  DistributedSampler sampler(*samples, sampling);
  auto loader = torch::data::make_data_loader(std::move(dataset), sampler, loading);
  return {std::move(sampler), std::move(loader)};
}

}  // namespace cohort
