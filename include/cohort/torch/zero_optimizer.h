// SPDX-License-Identifier: BSD-3-Clause
//
// An optimizer whose state is sharded over the ranks (ZeRO stage 1: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", SC 2020). Each parameter has an owner: only that rank keeps
// moments for it and steps it; then all ranks get the new values. With AdamW a rank holds 8 bytes of state for each of
// its own float parameters instead of for all of them, and steps 1/size of them.
//
//   cohort::ZeroOptimizer<torch::optim::AdamW> optimizer(ddp.parameters(), 1e-3, {.process_group = pg});
//   loss.backward();              // all ranks have the same gradients, as DistributedDataParallel makes them
//   optimizer.step();             // collective
//   optimizer.param_groups()[0].options().set_lr(1e-4);     // as with any other optimizer
//
// The result is the same as that of the optimizer itself, to the bit, on any number of ranks.
//
// Parameters are assigned by size, the largest first, always to the rank that has the least so far (PyTorch's rule).
// After the step the owners broadcast their parameters: small ones together in buffers of 25 MiB, large ones in place.
//
// Checkpoints: consolidate_state(root) is collective and collects the state of all ranks on the root, which can then
// save it. The format is that of the optimizer itself: it can be loaded without ZeRO, and the other way round, and on
// another number of ranks. Checkpoint does both calls by itself; with its option `sharded` each rank writes its own
// share, and no rank holds all of it.
//
// For hooks that step while backward runs, owner_of() tells which rank steps a parameter, step_parameters() steps some
// of them, and share_parameters() sends some to all ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/state_dict.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cohort {

/// The types that belong to an optimizer; specialise it for your own one, unless it has members of these names.
template <class Inner>
struct OptimizerTypes {
  using Options = typename Inner::Options;
  using State = typename Inner::State;
};
template <>
struct OptimizerTypes<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
};
template <>
struct OptimizerTypes<torch::optim::Adam> {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
};
template <>
struct OptimizerTypes<torch::optim::AdamW> {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
};
template <>
struct OptimizerTypes<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
};
template <>
struct OptimizerTypes<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
};
template <>
struct OptimizerTypes<optim::SGD> : OptimizerTypes<torch::optim::SGD> {};
template <>
struct OptimizerTypes<optim::Adam> : OptimizerTypes<torch::optim::Adam> {};
template <>
struct OptimizerTypes<optim::AdamW> : OptimizerTypes<torch::optim::AdamW> {};
template <>
struct OptimizerTypes<optim::Adagrad> : OptimizerTypes<torch::optim::Adagrad> {};
template <>
struct OptimizerTypes<optim::RMSprop> : OptimizerTypes<torch::optim::RMSprop> {};

struct ZeroOptions {
  ProcessGroupPtr process_group{};  ///< null: current_process_group()
  /// The largest size of a buffer in which small parameters are sent together, in bytes.
  std::size_t bucket_bytes = std::size_t{25} << 20;
};

/// The part of ZeroOptimizer that does not depend on the inner optimizer.
class COHORT_API ZeroOptimizerBase : public torch::optim::Optimizer {
 public:
  /// Collective.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// Collective.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// The rank that steps the parameter. A ValueError for a tensor that is none of the parameters.
  int owner_of(const at::Tensor& parameter) const;
  /// Steps those of the parameters that this rank owns, without communicating.
  void step_parameters(std::span<const at::Tensor> parameters);
  /// Collective, with the same list on all ranks. Sends the parameters from their owners to all ranks.
  void share_parameters(std::span<const at::Tensor> parameters);
  /// Collective. From now on share_parameters() sends over a group of its own, with the same ranks: a group performs
  /// its operations in order, and these would queue behind whatever was launched on it before, as DDP's reductions are.
  /// DistributedDataParallel::register_zero_step calls it. Does nothing if the backend cannot be split.
  void share_over_own_group();

  /// Collective. Collects the state on the root, which can save() until the next step.
  void consolidate_state(int root = 0);
  /// An Error before consolidate_state, and on ranks other than the root.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Every rank reads the whole state and keeps its share. Not collective.
  void load(torch::serialize::InputArchive& archive) override;

  // For Checkpoint, which needs an inner optimizer of libtorch: the whole state on the root after consolidate_state,
  // and each rank's share of it, in which parameters have the same numbers. load_state_dict takes either, and all
  // shares together; it is not collective. needs_state tells whether this rank loads what has this key.
  StateDict state_dict() const;
  StateDict local_state_dict() const;
  bool needs_state(const std::string& key) const;
  void check_state_dict(const StateDict& state) const;
  void load_state_dict(const StateDict& state);

  const ProcessGroupPtr& process_group() const noexcept { return group_; }
  /// What share_parameters() sends over.
  const ProcessGroupPtr& sharing_group() const noexcept { return own_group_ != nullptr ? own_group_ : group_; }
  /// The inner optimizer, with this rank's share of the parameters.
  torch::optim::Optimizer& local_optimizer() noexcept { return *local_; }
  const torch::optim::Optimizer& local_optimizer() const noexcept { return *local_; }

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;
  using MakeState = std::function<std::unique_ptr<torch::optim::OptimizerParamState>()>;

  ZeroOptimizerBase(Groups groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults, MakeOptimizer make,
                    MakeState make_state, ZeroOptions options);

 private:
  void deal_out(const torch::optim::OptimizerParamGroup& group);
  void check_ranks_agree() const;
  bool is_mine(const at::Tensor& parameter) const;
  torch::optim::OptimizerParamGroup share_of(const torch::optim::OptimizerParamGroup& group) const;
  void copy_options();
  std::vector<at::Tensor> all_parameters() const;

  MakeOptimizer make_;
  MakeState make_state_;
  ProcessGroupPtr group_;
  ProcessGroupPtr own_group_;  ///< null: parameters are sent over group_
  std::size_t bucket_bytes_;
  std::unordered_map<c10::TensorImpl*, int> owners_;
  std::vector<std::int64_t> loads_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  ///< on the root after consolidate_state
};

template <class Inner>
class ZeroOptimizer final : public ZeroOptimizerBase {
 public:
  using Options = typename OptimizerTypes<Inner>::Options;
  using State = typename OptimizerTypes<Inner>::State;

  /// Collective: checks that all ranks have the same parameters; a MismatchError names the rank that differs. A
  /// parameter that is listed twice, as libtorch lists tied weights, counts once.
  explicit ZeroOptimizer(std::vector<at::Tensor> parameters, Options defaults = {}, ZeroOptions options = {})
      : ZeroOptimizer(Groups{torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults),
                      std::move(options)) {}
  explicit ZeroOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults = {},
                         ZeroOptions options = {})
      : ZeroOptimizerBase(
            std::move(groups), std::make_unique<Options>(defaults),
            [defaults](Groups some) { return std::make_unique<Inner>(std::move(some), defaults); },
            [] { return std::make_unique<State>(); }, std::move(options)) {}
};

}  // namespace cohort
