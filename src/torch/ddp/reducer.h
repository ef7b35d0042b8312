// SPDX-License-Identifier: BSD-3-Clause
//
// Averages gradients while backward runs. Hooks on the parameters' gradient accumulators fill the buckets; a full
// bucket is reduced as soon as all buckets before it are; when the outermost backward ends, the reductions that are
// still under way are waited for.
//
// If parameters are stepped in backward, a bucket whose reduction has ended is handed out when the next gradient
// arrives: its parameters have all been used then, so that they may change while backward still computes.
//
// The reduction divides by the number of ranks itself where the backend can (premul_sum). The last bucket is reduced by
// the thread that would wait for it anyway.
//
// One iteration: prepare_for_forward, rebuild_buckets, [forward], prepare_for_backward, [backward]. One mutex guards
// everything, since gradients on several devices arrive on several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "torch/accumulation_hook.h"
#include "torch/ddp/bucket_set.h"
#include "torch/ddp/parameters.h"
#include "torch/ddp/timeline.h"
#include "torch/ddp/usage_tracker.h"
#include "torch/optim/in_backward.h"

namespace cohort::ddp {

struct ReducerOptions {
  ProcessGroupPtr process_group{};
  Parameters parameters{};
  BucketOptions buckets{};
  UsageMode usage = UsageMode::all_used;
  bool skip_all_reduce_unused = false;
  /// Called with every error that leaves backward.
  std::function<void(const char* what, std::uint64_t iteration)> on_error{};
};

struct ReducerStatistics {
  std::uint64_t iterations = 0;
  std::uint64_t buckets_reduced = 0;
  bool has_rebuilt = false;
  std::vector<std::size_t> bucket_bytes{};
  std::vector<std::vector<std::size_t>> bucket_parameters{};
  std::size_t unused_bytes = 0;
  bool graph_looks_static = true;
  // The last iteration that was reduced.
  IterationTimes times{};
  std::vector<std::size_t> ready_order{};  ///< parameters in the order in which their gradients arrived
};

/// What decides how the next backward is reduced, for guards of a recorded step.
struct ReductionMode {
  bool has_failed = false;  ///< the last backward; the next forward throws
  bool is_idle = true;      ///< no gradients are expected
  bool is_attached = true;
  bool is_learning = false;
  bool is_rebuild_due = false;
  bool has_divisor = false;
  std::uint64_t bucket_builds = 0;  ///< how often the buckets were made anew
  std::uint64_t hooks = 0;          ///< how often a communication hook was set, or something to do after each bucket
  bool operator==(const ReductionMode&) const = default;
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  static std::shared_ptr<Reducer> make(ReducerOptions options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void prepare_for_forward();
  /// Collective in the iteration in which the buckets are rebuilt. Throws as check_finalized() does.
  void rebuild_buckets();
  /// Gradients are expected from now on. `outputs` are forward's, for the search for unused parameters. `has_sink`:
  /// the loss is computed from outputs that will call start_learning(). Without it the first gradient has to, which
  /// may be too early if backwards run inside backwards.
  void prepare_for_backward(std::span<const at::Tensor> outputs, bool has_sink);
  /// The backward that follows is not reduced.
  void skip_backward();
  /// The backward that is running goes through the graph of a forward that synchronises. It is an Error if it reaches
  /// a parameter when no such backward is expected any more: nobody would average its gradients.
  void enter_graph();
  /// In the first iteration of a static graph: all gradients are reduced when the backward that is running ends.
  void start_learning();
  bool is_learning() const;

  /// An Error that names the parameters if the last backward did not give every parameter its gradient.
  void check_finalized() const;
  /// Removes the hooks: from now on the parameters are trained on this rank alone.
  void detach();
  /// After a failure: forgets what was begun and recreates the buckets in memory of the new group. Null: this rank is
  /// not part of the new group.
  void reset(ProcessGroupPtr process_group);

  void set_comm_hook(CommHook hook);
  bool has_comm_hook() const { return static_cast<bool>(hook_); }
  void set_static_graph();
  /// Called once for each backward if gradients are not to be divided by the number of ranks; null: they are.
  void set_divisor(std::function<double()> divisor);
  enum class When {
    as_reduced,  ///< perhaps while backward computes, and at another time on each rank
    at_end,      ///< of backward
  };
  /// Called for each bucket, in order, once its parameters have their reduced gradients; null: nothing is.
  void set_after_bucket(std::function<void(const Bucket& bucket)> call, When when);
  /// Waited for at the end of backward.
  void add_future(Future<void> future);
  /// The rows that sparse gradients can have in the next backward, by parameter.
  void set_sparse_ids(std::map<std::size_t, at::Tensor> ids);

  /// What a rank without input does during one backward of the others: the same reductions, of zeros.
  void shadow_backward();
  /// What it does while the others rebuild their buckets.
  void shadow_rebuild();

  /// For communication hooks, while they are called.
  double divisor() const { return divisor_; }
  const ProcessGroupPtr& process_group() const { return group_; }

  std::uint64_t iterations() const;
  ReductionMode mode() const;
  ReducerStatistics statistics() const;
  void record_timeline();
  std::string timeline_json() const;

 private:
  enum class State {
    idle,              ///< no gradients are expected
    forward_done,      ///< a backward is to come
    learning,          ///< the first backward of a static graph runs; its end is queued
    backward_running,  ///< gradients have arrived
    finalising,        ///< all gradients are there, and reductions are waited for
    failed,            ///< backward threw; only reset() leads out of it
  };

  explicit Reducer(ReducerOptions options);
  void attach();
  void on_gradient(std::size_t parameter);
  void start_backward();
  void mark_ready(std::size_t parameter);
  void launch_full_buckets();
  void launch(Bucket& bucket, std::size_t index);
  void launch_hook(Bucket& bucket, std::size_t index);
  Work all_reduce(const Bucket& bucket, bool async_op);
  at::Tensor all_reduce_sparse(std::size_t parameter, const at::Tensor& gradient);
  void queue_learning();
  void finish_reduced(std::size_t parameter);
  void finalise();
  void finish(Bucket& bucket, std::size_t index);
  at::Tensor wait_for(Bucket& bucket, std::size_t index);
  /// Runs `run` at the end of the backward that is under way.
  template <class Run>
  void queue(Run run);
  /// Runs `run`; an error makes the backward a failed one and is reported before it goes on.
  template <class Run>
  void guarded(Run&& run);
  void check_finalized_locked() const;
  [[noreturn]] void refuse_ready_twice(std::size_t parameter) const;
  [[noreturn]] void refuse_unexpected(std::size_t parameter);
  void resolve_divisor();
  bool wants_rebuild() const;
  bool is_rebuild_due() const;

  const Parameters parameters_;
  const bool skip_all_reduce_unused_;
  ProcessGroupPtr group_;
  std::vector<AccumulationHook> hooks_;
  std::optional<in_backward::Averaged> averaged_;  ///< while there are hooks
  UsageTracker::Accumulators accumulators_;

  mutable std::mutex mutex_;
  BucketSet buckets_;
  UsageTracker usage_;
  State state_ = State::idle;
  std::string failure_;  ///< what the failed backward threw
  std::size_t next_bucket_ = 0;
  std::size_t finished_ = 0;  ///< buckets whose parameters have their reduced gradients
  bool has_sink_ = false;
  bool is_in_graph_ = false;  ///< since enter_graph(), until that backward ends
  bool is_local_ = false;     ///< the last forward was one in no_sync
  double divisor_ = 1;        ///< valid from start_backward() on
  std::map<std::size_t, at::Tensor> sparse_ids_;
  std::vector<Future<void>> futures_;

  CommHook hook_;
  bool is_hook_replaceable_ = false;  ///< since reset(): the hook has the old group
  std::function<double()> divisor_source_;
  std::function<void(const Bucket& bucket)> after_bucket_;
  When when_after_bucket_ = When::at_end;
  const std::function<void(const char* what, std::uint64_t iteration)> on_error_;

  std::uint64_t iterations_ = 0;
  std::uint64_t reductions_ = 0;  ///< backwards that were reduced, including those of other ranks only
  std::uint64_t buckets_reduced_ = 0;
  std::uint64_t hooks_set_ = 0;
  std::vector<std::size_t> ready_order_;
  std::vector<std::size_t> last_ready_order_;
  IterationTimes times_;
  IterationTimes last_times_;
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace cohort::ddp
