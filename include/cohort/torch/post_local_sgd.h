// SPDX-License-Identifier: BSD-3-Clause
//
// Post-local SGD: after some steps of ordinary training, gradients are averaged within a node only (or not at all), and
// models are averaged over everybody now and then. Less to send between nodes, for models that drift a little apart.
//
//   auto state = std::make_shared<cohort::PostLocalSgdState>(
//       cohort::PostLocalSgdOptions{.process_group = pg, .start_local_sgd_iter = 100});
//   ddp.register_comm_hook(cohort::hooks::post_local_sgd(state));
//   torch::optim::SGD sgd(ddp.parameters(), 0.1);
//   cohort::PostLocalSgdOptimizer optimizer(
//       sgd, std::make_shared<cohort::PeriodicModelAverager>(
//                cohort::ModelAveragerOptions{.process_group = pg, .period = 4, .warmup_steps = 100}));
//   ...
//   optimizer.step();                                                     // and averages every fourth time
//
// T. Lin, S. U. Stich, K. K. Patel and M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD" (ICLR 2020). Give the
// averager the hook's start as its warmup_steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace cohort {

struct PostLocalSgdOptions {
  ProcessGroupPtr process_group{};  ///< of all ranks; none: the current one
  /// Whose gradients are averaged later on; none: those of the ranks on the same host, found when first used.
  ProcessGroupPtr subgroup{};
  std::int64_t start_local_sgd_iter = 0;
  /// Off: later on gradients are not averaged at all.
  bool post_local_gradient_allreduce = true;
};

class COHORT_API PostLocalSgdState {
 public:
  /// A negative start is a ValueError.
  explicit PostLocalSgdState(PostLocalSgdOptions options = {});

  const PostLocalSgdOptions& options() const noexcept { return options_; }
  /// Backwards that are through; the last bucket of each counts.
  std::int64_t iteration() const noexcept { return iteration_; }
  bool is_local() const noexcept { return iteration_ >= options_.start_local_sgd_iter; }

  /// One bucket, as the hook does it.
  TensorFuture average(GradBucket& bucket);

 private:
  PostLocalSgdOptions options_;
  std::int64_t iteration_ = 0;
};

namespace hooks {

/// Averages over all ranks before the start, and over the subgroup after it.
COHORT_API CommHook post_local_sgd(std::shared_ptr<PostLocalSgdState> state);

}  // namespace hooks

/// Of each host (ranks that share a boot id, or COHORT_HOST_ID) the ranks as a group: this rank's. All ranks call it.
COHORT_API ProcessGroupPtr split_by_host(ProcessGroup& group);

/// Averages models now and then; steps are counted here.
class COHORT_API ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  /// Once for each step, by all ranks, with parameters in the same order: the average over the ranks where this step is
  /// due, and only of parameters that have a gradient.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  void average_parameters(const std::vector<torch::optim::OptimizerParamGroup>& groups);

  std::int64_t step() const noexcept { return step_; }
  void set_step(std::int64_t step) noexcept { step_ = step; }

 protected:
  explicit ModelAverager(std::int64_t warmup_steps);
  /// So many steps after the warm-up: the group to average over, or null.
  virtual ProcessGroupPtr group_at(std::int64_t step) const = 0;

 private:
  std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

struct ModelAveragerOptions {
  ProcessGroupPtr process_group{};  ///< none: the current one
  /// Of 1 gradients could as well be averaged: the log says so.
  std::int64_t period = 1;
  std::int64_t warmup_steps = 0;
};

/// Averages when the warm-up is over and every `period` steps from then on.
class COHORT_API PeriodicModelAverager final : public ModelAverager {
 public:
  /// A ValueError for a period below 1 and a negative warm-up.
  explicit PeriodicModelAverager(ModelAveragerOptions options);

 private:
  ProcessGroupPtr group_at(std::int64_t step) const override;
  ModelAveragerOptions options_;
};

struct HierarchicalModelAveragerOptions {
  ProcessGroupPtr process_group{};  ///< none: the current one
  /// Both rising: {{2, 4}, {8, 32}} averages every 2 steps over neighbours in fours (ranks 0..3, 4..7, ...), and every
  /// 8 steps over all 32 instead.
  std::vector<std::pair<std::int64_t, std::int64_t>> period_group_sizes{};
  std::int64_t warmup_steps = 0;
};

/// Often over few ranks, seldom over all: of the periods that divide the steps since the warm-up the largest counts.
class COHORT_API HierarchicalModelAverager final : public ModelAverager {
 public:
  /// Makes the groups; all ranks call it. A ValueError for no periods, periods or sizes that do not rise or are below
  /// 1, sizes that do not divide the number of ranks, and when the last size is not that number.
  explicit HierarchicalModelAverager(HierarchicalModelAveragerOptions options);

 private:
  ProcessGroupPtr group_at(std::int64_t step) const override;
  std::vector<std::pair<std::int64_t, ProcessGroupPtr>> groups_;  // by period
};

/// An optimizer whose steps end with the averager's.
class COHORT_API PostLocalSgdOptimizer {
 public:
  /// `inner` must live as long as this.
  PostLocalSgdOptimizer(torch::optim::Optimizer& inner, std::shared_ptr<ModelAverager> averager);
  PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<ModelAverager> averager);

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  void zero_grad() { inner_->zero_grad(); }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() noexcept { return inner_->param_groups(); }
  torch::optim::Optimizer& inner() noexcept { return *inner_; }
  ModelAverager& averager() noexcept { return *averager_; }

  /// The inner optimizer's archive with the averager's step in it. One without, as the inner optimizer alone writes it,
  /// is taken with a warning: the averager begins at 0.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::shared_ptr<torch::optim::Optimizer> inner_;
  std::shared_ptr<ModelAverager> averager_;
};

/// So that torch::save(optimizer, file) and torch::load(optimizer, file) work.
COHORT_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                       const PostLocalSgdOptimizer& optimizer);
COHORT_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                      PostLocalSgdOptimizer& optimizer);

}  // namespace cohort
