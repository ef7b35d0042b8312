// SPDX-License-Identifier: BSD-3-Clause
//
// Which parameters an iteration uses. A bucket is full when all its gradients are there, so parameters that will get
// none have to be known: by searching the graph of each forward, or by watching the first iteration of a graph that
// stays the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "torch/ddp/parameters.h"

namespace cohort::ddp {

enum class UsageMode {
  all_used,      ///< every parameter gets a gradient in every backward
  searched,      ///< find_unused_parameters: the graph of each forward is searched
  static_graph,  ///< the first iteration shows how often each parameter is used in all of them
};

/// Not thread-safe: the reducer's mutex guards it.
class UsageTracker {
 public:
  /// A parameter's index, by its gradient accumulator in the graph.
  using Accumulators = std::unordered_map<const void*, std::size_t>;

  /// `parameters` must outlive the tracker.
  UsageTracker(const Parameters& parameters, UsageMode mode);

  UsageMode mode() const { return mode_; }
  void set_static_graph() { mode_ = UsageMode::static_graph; }

  /// Starts an iteration whose forward returned `outputs`; they are looked at in mode `searched` only.
  void start_iteration(std::span<const at::Tensor> outputs, const Accumulators& accumulators);
  /// Notes that this rank used the parameter, also in a backward that is not reduced.
  void mark_used(std::size_t parameter);

  // The first iteration of a static graph.
  bool is_learning() const { return mode_ == UsageMode::static_graph && !has_learnt_; }
  void count_use(std::size_t parameter) { ++uses_[parameter]; }
  bool has_counted_uses() const;
  /// Collective in the group's first backward that is reduced: tells which parameters any rank uses, which need not be
  /// the same on all ranks. An Error if that was while this rank had no input, and it uses others.
  void finish_learning(ProcessGroup& group);
  /// The same for a rank that has no input: it uses nothing.
  void follow_learning(ProcessGroup& group);
  /// Before a gradient that is kept for a later reduction: an Error if a static graph has it left out of all of them.
  void check_is_reduced(std::size_t parameter) const;

  /// Whether the gradient that has just arrived is the parameter's last one of this backward. An Error if a static
  /// graph gives it more gradients than the first iteration did.
  bool is_last_use(std::size_t parameter);

  /// The parameters that this rank does not use in this iteration, ascending.
  const std::vector<std::size_t>& unused() const { return unused_; }
  bool is_unused(std::size_t parameter) const;
  /// Whether none of them has anything to reduce: nobody uses them in a static graph, or this rank has not used them
  /// since the last reduction and has promised that the others have not, either.
  bool have_nothing_to_reduce(std::span<const std::size_t> parameters) const;

  /// Starts the reduction that tells which parameters any rank used; in mode `searched` only.
  void start_reduction(ProcessGroup& group);
  /// The same for a rank that has no input: it used nothing.
  void reduce_nothing(ProcessGroup& group) const;
  /// Whether this rank alone can tell whether no rank used it.
  bool knows_use_of(std::size_t parameter) const { return mode_ != UsageMode::searched || used_[parameter] != 0; }
  /// Whether no rank used it. Waits for the reduction.
  bool is_globally_unused(std::size_t parameter);
  void finish_iteration();
  /// After a failure: forgets everything that ranks may disagree about.
  void reset();

  /// Whether every iteration so far had the same unused parameters.
  bool looks_static() const { return looks_static_; }
  std::size_t unused_bytes() const;

 private:
  void exchange_used(ProcessGroup& group, std::vector<std::int32_t> mine);
  [[noreturn]] void refuse_change(std::size_t parameter, const char* what) const;
  at::Tensor used_tensor(std::vector<std::int32_t> used) const;

  const Parameters& parameters_;
  UsageMode mode_;
  std::vector<std::size_t> unused_;
  std::vector<std::int32_t> used_;  ///< by this rank, since the last reduction
  at::Tensor reduced_used_;         ///< on the parameters' device until it is needed
  std::optional<Work> reduction_;

  bool has_learnt_ = false;
  std::vector<int> uses_;       ///< in the first iteration of a static graph
  std::vector<int> uses_left_;  ///< in the current one
  /// On how many ranks the parameters of a static graph are used; empty until the first reduction.
  std::vector<std::int32_t> ranks_using_;

  std::optional<std::vector<std::size_t>> last_unused_;
  bool looks_static_ = true;
  bool has_warned_ = false;
};

}  // namespace cohort::ddp
