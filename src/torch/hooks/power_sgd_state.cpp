// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/power_sgd.h>
#include <torch/serialize/archive.h>

#include <fmt/format.h>

#include <string>
#include <utility>

#include "torch/hooks/power_sgd_memory.h"

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

std::int64_t read_int(InputArchive& archive, const char* key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toInt();
}
double read_double(InputArchive& archive, const char* key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toDouble();
}
bool read_bool(InputArchive& archive, const char* key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toBool();
}

/// Archives know signed integers only.
std::int64_t as_signed(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}
std::uint64_t as_unsigned(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

constexpr std::int64_t archive_format = 1;

}  // namespace

PowerSgdState::PowerSgdState(PowerSgdOptions options) : options_(std::move(options)) {
  check(options_);
  if (!options_.process_group) options_.process_group = require_current_process_group("PowerSgdState");
}

void PowerSgdState::save(OutputArchive& archive) const {
  archive.write("format", c10::IValue(archive_format));
  archive.write("matrix_approximation_rank", c10::IValue(options_.matrix_approximation_rank));
  archive.write("start_power_sgd_iter", c10::IValue(options_.start_power_sgd_iter));
  archive.write("min_compression_rate", c10::IValue(options_.min_compression_rate));
  archive.write("use_error_feedback", c10::IValue(options_.use_error_feedback));
  archive.write("warm_start", c10::IValue(options_.warm_start));
  archive.write("orthogonalization_epsilon", c10::IValue(options_.orthogonalization_epsilon));
  archive.write("random_seed", c10::IValue(as_signed(options_.random_seed)));
  archive.write("compression_stats_logging_frequency", c10::IValue(options_.compression_stats_logging_frequency));
  archive.write("batch_tensors_with_same_shape", c10::IValue(options_.batch_tensors_with_same_shape));
  archive.write("iteration", c10::IValue(iteration_));
  archive.write("next_report", c10::IValue(next_report_));
  archive.write("draws", c10::IValue(as_signed(draws_)));
  archive.write("numel_before", c10::IValue(stats_.numel_before));
  archive.write("numel_after", c10::IValue(stats_.numel_after));
  std::vector<std::int64_t> indices;
  for (const auto& [index, memory] : memories_) {
    indices.push_back(static_cast<std::int64_t>(index));
    const auto write = [&, at = index](const char* what, const at::Tensor& tensor) {
      if (tensor.defined()) archive.write(fmt::format("bucket{}_{}", at, what), tensor, /*is_buffer=*/true);
    };
    write("error", memory->error);
    write("p", memory->p);
    write("q", memory->q);
  }
  archive.write("buckets", c10::IValue(indices));
}

void PowerSgdState::load(InputArchive& archive) {
  if (const auto format = read_int(archive, "format"); format != archive_format) {
    throw ValueError(fmt::format("a PowerSgdState in format {}; this is {}", format, archive_format));
  }
  PowerSgdOptions options{
      .process_group = options_.process_group,
      .matrix_approximation_rank = read_int(archive, "matrix_approximation_rank"),
      .start_power_sgd_iter = read_int(archive, "start_power_sgd_iter"),
      .min_compression_rate = read_double(archive, "min_compression_rate"),
      .use_error_feedback = read_bool(archive, "use_error_feedback"),
      .warm_start = read_bool(archive, "warm_start"),
      .orthogonalization_epsilon = read_double(archive, "orthogonalization_epsilon"),
      .random_seed = as_unsigned(read_int(archive, "random_seed")),
      .compression_stats_logging_frequency = read_int(archive, "compression_stats_logging_frequency"),
      .batch_tensors_with_same_shape = read_bool(archive, "batch_tensors_with_same_shape"),
  };
  check(options);
  std::map<std::size_t, std::shared_ptr<PowerSgdMemory>> memories;
  c10::IValue buckets;
  archive.read("buckets", buckets);
  for (const auto index : buckets.toIntVector()) {
    auto& memory = memories[static_cast<std::size_t>(index)] = std::make_shared<PowerSgdMemory>();
    const auto read = [&, at = index](const char* what, at::Tensor& tensor) {
      archive.try_read(fmt::format("bucket{}_{}", at, what), tensor, /*is_buffer=*/true);
    };
    read("error", memory->error);
    read("p", memory->p);
    read("q", memory->q);
  }
  iteration_ = read_int(archive, "iteration");
  next_report_ = read_int(archive, "next_report");
  draws_ = as_unsigned(read_int(archive, "draws"));
  stats_ = {.numel_before = read_int(archive, "numel_before"), .numel_after = read_int(archive, "numel_after")};
  options_ = std::move(options);
  memories_ = std::move(memories);
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
