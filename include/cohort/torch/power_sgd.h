// SPDX-License-Identifier: BSD-3-Clause
//
// PowerSGD, a communication hook that sends each gradient as the product of two thin matrices.
//
//   auto state = std::make_shared<cohort::PowerSgdState>(cohort::PowerSgdOptions{
//       .process_group = pg, .matrix_approximation_rank = 2, .start_power_sgd_iter = 10});
//   ddp.register_comm_hook(cohort::hooks::power_sgd(state));
//
// A gradient of n rows and m columns is approximated by P Qᵀ with r columns each, which one step of the power method
// computes from the last step's Q. What the approximation leaves out is added to the next step's gradient. So (n + m) r
// numbers are sent instead of n m. T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization" (NeurIPS 2019).
//
// Error feedback needs as much memory again as the gradients. The result is an approximation, so training differs from
// plain averaging: begin with rank 1 and double it until the quality is sufficient. The batched variant treats the
// whole bucket as one square matrix, which is faster and less precise.
//
// A state belongs to one model. The hook blocks until P is summed, since Q is computed from it.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>
#include <cohort/torch/state_dict.h>

#include <cstdint>
#include <map>
#include <memory>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace cohort {

struct PowerSgdMemory;
class PowerSgdStep;

struct PowerSgdOptions {
  ProcessGroupPtr process_group{};  ///< null: current_process_group()
  /// r, the number of columns of P and Q.
  std::int64_t matrix_approximation_rank = 1;
  /// The first backwards, up to this number, average gradients uncompressed: early gradients are the least alike.
  std::int64_t start_power_sgd_iter = 1000;
  /// A matrix is compressed if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// Adds what the approximation left out to the next gradient. Without it training often fails to converge.
  bool use_error_feedback = true;
  /// Starts from the Q of the last step instead of a random one.
  bool warm_start = true;
  /// Added to the norms by which the columns of P are divided, if there are one or two, or halves: the parts of
  /// gradients that are smaller than this wait in the error feedback. Gradients of zeros do not need it.
  double orthogonalization_epsilon = 0;
  /// The seed of the random first Q; the same on all ranks.
  std::uint64_t random_seed = 0;
  /// The number of iterations between two log messages about the compression; below 1 counts as 1.
  std::int64_t compression_stats_logging_frequency = 10'000;
  /// Multiplies matrices of the same shape together: fewer and larger steps, at the cost of one copy of each matrix.
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
  /// A ValueError for error feedback or a warm start from iteration 1 or earlier (DistributedDataParallel rebuilds its
  /// buckets after the first iteration), for a rank below 1, and for negative factors.
  explicit PowerSgdState(PowerSgdOptions options = {});

  const PowerSgdOptions& options() const noexcept { return options_; }
  /// The number of backwards whose last bucket has been reduced.
  std::int64_t iteration() const noexcept { return iteration_; }
  PowerSgdStats compression_stats() const noexcept { return stats_; }

  /// Writes everything except the group: options, iteration, statistics, and the error, P and Q of each bucket. Errors
  /// differ between ranks, so each rank has to save its state.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Replaces everything except the group.
  void load(torch::serialize::InputArchive& archive);
  /// The same for Checkpoint::add_per_rank.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  template <class To>
  void write_to(To& to) const;
  template <class From>
  void read_from(From& from);

  friend struct PowerSgdMemory;
  friend class PowerSgdStep;

  PowerSgdOptions options_;
  std::int64_t iteration_ = 0;
  std::int64_t next_report_ = 0;
  std::uint64_t draws_ = 0;  // how often Q was drawn at random
  PowerSgdStats stats_;
  std::map<std::size_t, std::shared_ptr<PowerSgdMemory>> memories_;  // by bucket
};

/// For torch::save(*state, file) and torch::load(*state, file).
COHORT_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                       const PowerSgdState& state);
COHORT_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, PowerSgdState& state);

namespace hooks {

COHORT_API CommHook power_sgd(std::shared_ptr<PowerSgdState> state);
COHORT_API CommHook batched_power_sgd(std::shared_ptr<PowerSgdState> state);

}  // namespace hooks

}  // namespace cohort
