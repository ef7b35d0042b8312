// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/power_sgd.h>

#include <fmt/format.h>

#include <string>
#include <utility>

#include "torch/hooks/power_sgd_memory.h"
#include "torch/state/archive.h"

namespace cohort {

namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

void check(const PowerSgdOptions& options) {
  if (options.start_power_sgd_iter <= 1 && (options.use_error_feedback || options.warm_start)) {
    throw ValueError(
        fmt::format("PowerSGD: start_power_sgd_iter is {}; with error feedback or warm start it must be above 1, since "
                    "buckets change after the first iteration",
                    options.start_power_sgd_iter));
  }
  const auto refuse = [](std::string_view what, auto value, std::string_view must) {
    throw ValueError(fmt::format("PowerSGD: {} is {}; it must {}", what, value, must));
  };
  if (options.matrix_approximation_rank < 1) {
    refuse("matrix_approximation_rank", options.matrix_approximation_rank, "be at least 1");
  }
  if (!(options.min_compression_rate > 0)) refuse("min_compression_rate", options.min_compression_rate, "be above 0");
  if (!(options.orthogonalization_epsilon >= 0)) {
    refuse("orthogonalization_epsilon", options.orthogonalization_epsilon, "not be negative");
  }
}

/// All options except the group, with the names under which they are stored.
template <class Options, class Visit>
void each_option(Options& options, Visit&& visit) {
  visit("matrix_approximation_rank", options.matrix_approximation_rank);
  visit("start_power_sgd_iter", options.start_power_sgd_iter);
  visit("min_compression_rate", options.min_compression_rate);
  visit("use_error_feedback", options.use_error_feedback);
  visit("warm_start", options.warm_start);
  visit("orthogonalization_epsilon", options.orthogonalization_epsilon);
  visit("random_seed", options.random_seed);
  visit("compression_stats_logging_frequency", options.compression_stats_logging_frequency);
  visit("batch_tensors_with_same_shape", options.batch_tensors_with_same_shape);
}

constexpr std::int64_t archive_format = 1;

}  // namespace

PowerSgdState::PowerSgdState(PowerSgdOptions options) : options_(std::move(options)) {
  check(options_);
  if (!options_.process_group) options_.process_group = require_current_process_group("PowerSgdState");
}

template <class To>
void PowerSgdState::write_to(To& archive) const {
  write_value(archive, "format", archive_format);
  each_option(options_, [&](const char* key, const auto& value) { write_value(archive, key, value); });
  write_value(archive, "iteration", iteration_);
  write_value(archive, "next_report", next_report_);
  write_value(archive, "draws", draws_);
  write_value(archive, "numel_before", stats_.numel_before);
  write_value(archive, "numel_after", stats_.numel_after);
  std::vector<std::int64_t> indices;
  for (const auto& [index, memory] : memories_) {
    indices.push_back(static_cast<std::int64_t>(index));
    const auto write = [&, at = index](const char* what, const at::Tensor& tensor) {
      if (tensor.defined()) write_tensor(archive, fmt::format("bucket{}_{}", at, what), tensor);
    };
    write("error", memory->error);
    write("p", memory->p);
    write("q", memory->q);
  }
  write_value(archive, "buckets", indices);
}

template <class From>
void PowerSgdState::read_from(From& archive) {
  if (const auto format = read_value<std::int64_t>(archive, "format"); format != archive_format) {
    throw ValueError(fmt::format("a PowerSgdState in format {}; this is {}", format, archive_format));
  }
  auto options = options_;
  each_option(options, [&]<class T>(const char* key, T& value) { value = read_value<T>(archive, key); });
  check(options);
  std::map<std::size_t, std::shared_ptr<PowerSgdMemory>> memories;
  for (const auto index : read_value<std::vector<std::int64_t>>(archive, "buckets")) {
    auto& memory = memories[static_cast<std::size_t>(index)] = std::make_shared<PowerSgdMemory>();
    const auto read = [&, at = index](const char* what, at::Tensor& tensor) {
      read_tensor(archive, fmt::format("bucket{}_{}", at, what), tensor);
    };
    read("error", memory->error);
    read("p", memory->p);
    read("q", memory->q);
  }
  iteration_ = read_value<std::int64_t>(archive, "iteration");
  next_report_ = read_value<std::int64_t>(archive, "next_report");
  draws_ = read_value<std::uint64_t>(archive, "draws");
  stats_ = {.numel_before = read_value<std::int64_t>(archive, "numel_before"),
            .numel_after = read_value<std::int64_t>(archive, "numel_after")};
  options_ = std::move(options);
  memories_ = std::move(memories);
}

void PowerSgdState::save(OutputArchive& archive) const {
  write_to(archive);
}
void PowerSgdState::load(InputArchive& archive) {
  read_from(archive);
}
StateDict PowerSgdState::state_dict() const {
  StateDict state;
  write_to(state);
  return state;
}
void PowerSgdState::load_state_dict(const StateDict& state) {
  read_from(state);
}

OutputArchive& operator<<(OutputArchive& archive, const PowerSgdState& state) {
  state.save(archive);
  return archive;
}

InputArchive& operator>>(InputArchive& archive, PowerSgdState& state) {
  state.load(archive);
  return archive;
}

}  // namespace cohort
