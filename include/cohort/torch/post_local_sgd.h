// SPDX-License-Identifier: BSD-3-Clause
//
// Post-local SGD: after some steps of ordinary training, gradients are averaged within a node only (or not at all), and
// models are averaged over all ranks from time to time. Less is sent between nodes, but the models drift slightly
// apart.
//
//   auto state = std::make_shared<cohort::PostLocalSgdState>(
//       cohort::PostLocalSgdOptions{.process_group = pg, .start_local_sgd_iter = 100});
//   ddp.register_comm_hook(cohort::hooks::post_local_sgd(state));
//   torch::optim::SGD sgd(ddp.parameters(), 0.1);
//   cohort::PostLocalSgdOptimizer optimizer(
//       sgd, std::make_shared<cohort::PeriodicModelAverager>(
//                cohort::ModelAveragerOptions{.process_group = pg, .period = 4, .warmup_steps = 100}));
//   ...
//   optimizer.step();                                                     // also averages, every fourth time
//
// T. Lin, S. U. Stich, K. K. Patel and M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD" (ICLR 2020). The
// averager's warmup_steps should be the hook's start_local_sgd_iter.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>
#include <cohort/torch/state_dict.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace cohort {

struct PostLocalSgdOptions {
  ProcessGroupPtr process_group{};  ///< all ranks; null: current_process_group()
  /// The ranks whose gradients are averaged after the start; null: the ranks on the same host, found at first use.
  ProcessGroupPtr subgroup{};
  /// The number of iterations that average gradients over all ranks.
  std::int64_t start_local_sgd_iter = 0;
  /// false: gradients are not averaged at all after the start.
  bool post_local_gradient_all_reduce = true;
};

class COHORT_API PostLocalSgdState {
 public:
  /// A negative start is a ValueError.
  explicit PostLocalSgdState(PostLocalSgdOptions options = {});

  const PostLocalSgdOptions& options() const noexcept { return options_; }
  /// The number of backwards whose last bucket has been reduced.
  std::int64_t iteration() const noexcept { return iteration_; }
  bool is_local() const noexcept { return iteration_ >= options_.start_local_sgd_iter; }

  /// Averages one bucket, as the hook does.
  TensorFuture average(GradBucket& bucket);

 private:
  PostLocalSgdOptions options_;
  std::int64_t iteration_ = 0;
};

namespace hooks {

/// Averages over all ranks before the start, and over the subgroup after it.
COHORT_API CommHook post_local_sgd(std::shared_ptr<PostLocalSgdState> state);

}  // namespace hooks

/// Collective. Makes a group of the ranks on each host (ranks with the same boot id, or the same COHORT_HOST_ID) and
/// returns the one of this rank.
COHORT_API ProcessGroupPtr split_by_host(ProcessGroup& group);

/// Averages the parameters of a model in some of its steps. Derived classes decide in which, and over which ranks.
class COHORT_API ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  /// To be called once for each step, by all ranks, with the parameters in the same order. In a step that averages, it
  /// does so for the parameters that have a gradient.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  void average_parameters(const std::vector<torch::optim::OptimizerParamGroup>& groups);

  std::int64_t step() const noexcept { return step_; }
  void set_step(std::int64_t step) noexcept { step_ = step; }

 protected:
  explicit ModelAverager(std::int64_t warmup_steps);
  /// The group to average over in this step, counted from 0; null: no averaging. It is not called during the warm-up.
  virtual ProcessGroupPtr group_at(std::int64_t step) const = 0;

 private:
  std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

struct ModelAveragerOptions {
  ProcessGroupPtr process_group{};  ///< null: current_process_group()
  /// With a period of 1 it is cheaper to average gradients; a warning is logged.
  std::int64_t period = 1;
  std::int64_t warmup_steps = 0;
};

/// Averages in the first step after the warm-up and every `period` steps from then on.
class COHORT_API PeriodicModelAverager final : public ModelAverager {
 public:
  /// A ValueError for a period below 1 or a negative warm-up.
  explicit PeriodicModelAverager(ModelAveragerOptions options);

 private:
  ProcessGroupPtr group_at(std::int64_t step) const override;
  ModelAveragerOptions options_;
};

struct HierarchicalModelAveragerOptions {
  ProcessGroupPtr process_group{};  ///< null: current_process_group()
  /// Pairs of a period and a group size, both ascending. {{2, 4}, {8, 32}} averages every 2 steps over groups of 4
  /// neighbours (ranks 0..3, 4..7, ...), and every 8 steps over all 32 ranks instead.
  std::vector<std::pair<std::int64_t, std::int64_t>> period_group_sizes{};
  std::int64_t warmup_steps = 0;
};

/// Averages often over few ranks and rarely over all of them: after the warm-up, in each step whose number, counted
/// from 0 and with the warm-up, is divisible by a period. If several periods divide it, the largest one counts.
class COHORT_API HierarchicalModelAverager final : public ModelAverager {
 public:
  /// Collective: makes the groups. A ValueError if there are no periods, if periods or sizes do not ascend or are below
  /// 1, if a size does not divide the number of ranks, or if the last size is not that number.
  explicit HierarchicalModelAverager(HierarchicalModelAveragerOptions options);

 private:
  ProcessGroupPtr group_at(std::int64_t step) const override;
  std::vector<std::pair<std::int64_t, ProcessGroupPtr>> groups_;  // by period
};

/// An optimizer that calls the averager after each of its steps.
class COHORT_API PostLocalSgdOptimizer {
 public:
  /// `inner` must outlive this object.
  PostLocalSgdOptimizer(torch::optim::Optimizer& inner, std::shared_ptr<ModelAverager> averager);
  PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<ModelAverager> averager);

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  void zero_grad() { inner_->zero_grad(); }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() noexcept { return inner_->param_groups(); }
  torch::optim::Optimizer& inner() noexcept { return *inner_; }
  ModelAverager& averager() noexcept { return *averager_; }

  /// The inner optimizer's archive, with the averager's step added. An archive that the inner optimizer wrote alone can
  /// be loaded; the averager then begins at 0, and a warning is logged.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);
  /// The same for Checkpoint. The inner optimizer must be one of libtorch's.
  StateDict state_dict() const;
  void check_state_dict(const StateDict& state) const;
  void load_state_dict(const StateDict& state);

 private:
  std::shared_ptr<torch::optim::Optimizer> inner_;
  std::shared_ptr<ModelAverager> averager_;
};

/// For torch::save(optimizer, file) and torch::load(optimizer, file).
COHORT_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                       const PostLocalSgdOptimizer& optimizer);
COHORT_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                      PostLocalSgdOptimizer& optimizer);

}  // namespace cohort
