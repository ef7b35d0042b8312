// SPDX-License-Identifier: BSD-3-Clause
//
// PowerSGD: gradients sent as the product of two thin matrices.
//
//   auto state = std::make_shared<cohort::PowerSgdState>(cohort::PowerSgdOptions{
//       .process_group = pg, .matrix_approximation_rank = 2, .start_power_sgd_iter = 10});
//   ddp.register_comm_hook(cohort::hooks::power_sgd(state));
//
// A gradient of n rows and m columns is approximated by P Qᵀ with r columns each, found by one step of the power method
// from the last step's Q, and what the approximation leaves out is added to the next step's gradient. Then (n + m) r
// numbers travel instead of n m. T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization" (NeurIPS 2019).
//
// It needs as much memory again as the gradients have, for error feedback, and is an approximation: training differs
// from plain averaging. Begin with rank 1 and double it until quality is right. The batched variant makes one square
// matrix of the whole bucket: faster, and further off.
//
// The state belongs to one model. The hook waits for P's sum, as Q is computed from it.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <cstdint>
#include <map>
#include <memory>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace cohort {

struct PowerSgdOptions {
  ProcessGroupPtr process_group{};  ///< none: the current one
  /// r: columns of P and Q.
  std::int64_t matrix_approximation_rank = 1;
  /// Until this many backwards are through, gradients are averaged as they are: early ones are the least alike.
  std::int64_t start_power_sgd_iter = 1000;
  /// A matrix is compressed where that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// What was left out is added to the next gradient. Without it training often fails to converge.
  bool use_error_feedback = true;
  /// Q begins where the last step ended, not at random.
  bool warm_start = true;
  /// Added to norms that are divided by. With 0 a gradient that is all zeros turns into NaN: 1e-8 is a good value where
  /// that happens.
  double orthogonalization_epsilon = 0;
  /// Of the random first Q: equal on all ranks.
  std::uint64_t random_seed = 0;
  /// How often the log says what was saved, in iterations; below 1 counts as 1.
  std::int64_t compression_stats_logging_frequency = 10'000;
  /// Matrices of equal shape are multiplied together: fewer and larger steps, for one copy of each.
  bool batch_tensors_with_same_shape = false;
};

struct PowerSgdStats {
  std::int64_t numel_before = 0;  ///< elements of all gradients since compression began
  std::int64_t numel_after = 0;   ///< elements that were sent for them
  /// 0 before anything was compressed.
  double compression_rate() const noexcept {
    return numel_after > 0 ? static_cast<double>(numel_before) / static_cast<double>(numel_after) : 0;
  }
};

class COHORT_API PowerSgdState {
 public:
  /// A ValueError for error feedback or warm start from iteration 1 or earlier (DistributedDataParallel rebuilds its
  /// buckets after the first), for a rank below 1, and for factors that are negative.
  explicit PowerSgdState(PowerSgdOptions options = {});

  const PowerSgdOptions& options() const noexcept { return options_; }
  /// Backwards that are through; the last bucket of each counts.
  std::int64_t iteration() const noexcept { return iteration_; }
  PowerSgdStats compression_stats() const noexcept { return stats_; }

  /// Everything but the group: options, iteration, statistics, and each bucket's error and P and Q. Errors are the
  /// rank's own, so each rank saves its state.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Keeps this state's group and takes all else.
  void load(torch::serialize::InputArchive& archive);

  /// Of a bucket: undefined until it is first used.
  struct Memory {
    at::Tensor error;  ///< flat
    at::Tensor p;      ///< all P of the bucket in one row
    at::Tensor q;
  };
  /// For tests and the curious.
  const std::map<std::size_t, std::shared_ptr<Memory>>& memories() const noexcept { return memories_; }

 private:
  friend class PowerSgdStep;

  PowerSgdOptions options_;
  std::int64_t iteration_ = 0;
  std::int64_t next_report_ = 0;
  std::uint64_t draws_ = 0;  // times Q was drawn at random
  PowerSgdStats stats_;
  std::map<std::size_t, std::shared_ptr<Memory>> memories_;
};

/// So that torch::save(*state, file) and torch::load(*state, file) work.
COHORT_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                       const PowerSgdState& state);
COHORT_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, PowerSgdState& state);

namespace hooks {

COHORT_API CommHook power_sgd(std::shared_ptr<PowerSgdState> state);
COHORT_API CommHook batched_power_sgd(std::shared_ptr<PowerSgdState> state);

}  // namespace hooks

}  // namespace cohort
