// SPDX-License-Identifier: BSD-3-Clause
//
// A sampler that gives each rank its share of a data set, for libtorch's data loaders:
//
//   cohort::DistributedSampler sampler(dataset.size().value(), {.group = pg, .seed = 1});
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, batch_size);
//   for (std::size_t epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);                       // another order, the same on all ranks
//     for (auto& batch : *loader) ...
//   }
//
// or, in one step, auto data = cohort::make_distributed_loader(dataset, {.group = pg}, batch_size), which has both:
// data.sampler, and data.begin() and end() of the loader.
//
// The rule is PyTorch's, and so is the order: the indices are shuffled by a generator seeded with seed + epoch, filled
// up with the first ones until all ranks get as many (or, with drop_last, cut off), and rank r takes each size-th,
// starting with the r-th. All ranks get the same number of samples, so that nobody waits in a collective for a rank
// that is done.
//
// A sampler is a handle: copies share the position, so the one in the loader can be steered from outside. save() and
// load() (for Checkpoint too) keep epoch and position; after load() the next pass through the loader goes on there, on
// any number of ranks: no sample of the epoch is seen twice (but those that fill up) and none is left out.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/base.h>
#include <torch/version.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace cohort {

namespace detail {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
template <class T>
using TorchOptional = std::optional<T>;
#else
template <class T>
using TorchOptional = c10::optional<T>;
#endif
}  // namespace detail

struct DistributedSamplerOptions {
  /// Whose ranks share the data; null: current_process_group(). Not looked at when `size` is given.
  ProcessGroupPtr group{};
  /// Rank and number of ranks, for ranks that are not those of a group (data parallel within a larger job).
  int rank = 0;
  int size = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leave out the last samples instead of giving some twice.
  bool drop_last = false;
};

class COHORT_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// For a data set of so many samples. Options that do not fit (a rank outside) are a ValueError.
  explicit DistributedSampler(std::size_t samples, const DistributedSamplerOptions& options = {});

  /// For the next pass: has an effect when the loader begins it.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;

  /// What this rank gets in an epoch, the same on all ranks.
  std::size_t samples_per_rank() const;
  /// Given out to this rank in this pass through the data.
  std::size_t position() const;

  /// A loader with worker threads asks for samples long before they are trained on. There, say after each step how many
  /// this rank has done: then save() writes that, not what was given out.
  void trained(std::size_t samples);

  // For the loader.
  void reset(detail::TorchOptional<std::size_t> new_size = {}) override;
  detail::TorchOptional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  /// A data set of another size is a ValueError.
  void load(torch::serialize::InputArchive& archive) override;

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

/// Shards, shuffles and loads. The data set must know its size.
template <class Dataset>
DistributedLoader<Dataset> make_distributed_loader(Dataset dataset, const DistributedSamplerOptions& sampling = {},
                                                   torch::data::DataLoaderOptions loading = {}) {
  const auto samples = dataset.size();
  TORCH_CHECK(samples.has_value(), "make_distributed_loader: the data set does not know its size");
  DistributedSampler sampler(*samples, sampling);
  auto loader = torch::data::make_data_loader(std::move(dataset), sampler, std::move(loading));
  return {std::move(sampler), std::move(loader)};
}

}  // namespace cohort
