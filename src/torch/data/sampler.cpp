// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/sampler.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "torch/state/archive.h"

namespace cohort {

/// The list of an epoch is divided into rounds of one sample for each rank. A pass starts after `start` samples of the
/// list: 0, or the position of the run that is resumed, whatever its number of ranks was.
struct DistributedSampler::State {
  std::size_t samples = 0;
  std::size_t rank = 0;
  std::size_t size = 1;
  bool shuffle = true;
  bool drop_last = false;
  std::uint64_t seed = 0;

  std::size_t next_epoch = 0;
  std::size_t epoch = 0;  ///< of the pass under way
  std::size_t start = 0;
  std::size_t given = 0;  ///< rounds
  std::optional<std::size_t> trained{};
  std::optional<std::size_t> resume{};  ///< where the next pass starts
  std::vector<std::size_t> list{};

  std::size_t rounds_from(std::size_t begin) const {
    const auto left = samples - std::min(begin, samples);
    return drop_last ? left / size : (left + size - 1) / size;
  }
  std::size_t rounds() const { return rounds_from(start); }
  /// Samples of the list, over all ranks.
  std::size_t done() const { return start + std::min(trained.value_or(given), given) * size; }

  template <class To>
  void write(To& to) const {
    // The pass was loaded but has not begun, so the position is the loaded one.
    const bool waits = resume.has_value();
    write_value(to, "samples", samples);
    write_value(to, "epoch", waits ? next_epoch : epoch);
    write_value(to, "done", waits ? *resume : done());
  }
  template <class From>
  void check(From& from) const {
    const auto saved = read_value<std::size_t>(from, "samples");
    if (saved == samples) return;
    throw ValueError(fmt::format("DistributedSampler: it was saved for a data set of {} samples, and this one has {}",
                                 saved, samples));
  }
  template <class From>
  void read(From& from) {
    check(from);
    const auto saved_epoch = read_value<std::size_t>(from, "epoch");
    resume = read_value<std::size_t>(from, "done");
    next_epoch = saved_epoch;
  }

  void begin(std::size_t from) {
    epoch = next_epoch;
    start = from;
    given = 0;
    trained.reset();
    list.resize(samples);
    if (!shuffle) {
      std::iota(list.begin(), list.end(), std::size_t{0});
      return;
    }
    const auto order = at::randperm(static_cast<std::int64_t>(samples), at::detail::createCPUGenerator(seed + epoch),
                                    at::TensorOptions(at::kLong));
    const auto* const first = order.data_ptr<std::int64_t>();
    std::transform(first, first + samples, list.begin(), [](std::int64_t i) { return static_cast<std::size_t>(i); });
  }
};

DistributedSampler::DistributedSampler(std::size_t samples, const DistributedSamplerOptions& options)
    : state_(std::make_shared<State>()) {
  int rank = options.rank;
  int size = options.size;
  if (size == 0) {
    const auto group =
        options.process_group != nullptr ? options.process_group : require_current_process_group("DistributedSampler");
    rank = group->rank();
    size = group->size();
  }
  if (size < 1 || rank < 0 || rank >= size) {
    throw ValueError(fmt::format("DistributedSampler: rank {} of {}", rank, size));
  }
  state_->samples = samples;
  state_->rank = static_cast<std::size_t>(rank);
  state_->size = static_cast<std::size_t>(size);
  state_->shuffle = options.shuffle;
  state_->drop_last = options.drop_last;
  state_->seed = options.seed;
  state_->begin(0);
}

void DistributedSampler::set_epoch(std::size_t epoch) {
  // A position to resume from belongs to its epoch; setting the same epoch again keeps it.
  if (state_->resume.has_value() && epoch != state_->next_epoch) state_->resume.reset();
  state_->next_epoch = epoch;
}

std::size_t DistributedSampler::epoch() const {
  return state_->next_epoch;
}

std::size_t DistributedSampler::samples_per_rank() const {
  return state_->rounds_from(0);
}

std::size_t DistributedSampler::position() const {
  return state_->given;
}

void DistributedSampler::trained(std::size_t samples) {
  state_->trained = state_->trained.value_or(0) + samples;
}

void DistributedSampler::reset(torch::optional<std::size_t> new_size) {
  if (new_size.has_value() && *new_size != state_->samples) {
    state_->samples = *new_size;
    state_->resume.reset();
  }
  state_->begin(state_->resume.value_or(0));
  state_->resume.reset();
}

torch::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  const auto left = state_->rounds() - state_->given;
  const auto count = std::min(batch_size, left);
  if (count == 0) return {};
  std::vector<std::size_t> indices(count);
  for (auto& index : indices) {
    const auto place = state_->start + state_->given++ * state_->size + state_->rank;
    index = state_->list[place % state_->samples];
  }
  return indices;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  state_->write(archive);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  state_->read(archive);
}

StateDict DistributedSampler::state_dict() const {
  StateDict state;
  state_->write(state);
  return state;
}

void DistributedSampler::check_state_dict(const StateDict& state) const {
  state_->check(state);
}

void DistributedSampler::load_state_dict(const StateDict& state) {
  state_->read(state);
}

}  // namespace cohort
