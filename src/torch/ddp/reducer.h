// SPDX-License-Identifier: BSD-3-Clause
//
// Averages gradients while backward runs. Hooks on the parameters' gradient accumulators fill buckets; a full bucket is
// reduced as soon as those before it are; when the outermost backward ends, what is under way is waited for.
//
// Costs: a gradient that autograd made elsewhere is copied into its bucket, once; one that lies there already is not
// touched. The division by the number of ranks is part of the reduction where the backend can (premul_sum), and
// nothing is copied afterwards, since the parameters' gradients are the bucket's memory. The last bucket is reduced by
// the thread that waits for it anyway.
//
// One iteration: prepare_for_forward, rebuild_buckets, [forward], prepare_for_backward, [backward]. One mutex guards
// everything: gradients of several devices arrive on several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/ddp/accumulation_hook.h"
#include "torch/ddp/bucket.h"
#include "torch/ddp/bucket_assignment.h"
#include "torch/ddp/timeline.h"

namespace cohort::ddp {

struct ReducerOptions {
  ProcessGroupPtr group{};
  std::vector<at::Tensor> parameters{};
  std::vector<std::string> names{};  ///< of the parameters, for errors
  std::vector<bool> expects_sparse{};
  std::size_t bucket_cap = 0;                 ///< bytes
  std::size_t first_cap = 0;                  ///< of the first bucket after a rebuild
  std::vector<std::size_t> bucket_caps{};     ///< one by one, instead of both
  std::vector<std::size_t> initial_limits{};  ///< before there is an order
  bool small_bucket_is_last = false;          ///< the first cap counts for the last bucket instead
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = true;
  bool batches_copies = false;  ///< a bucket's gradients are copied and divided together, when all are there
  bool static_graph = false;
  bool skip_all_reduce_unused = false;
  bool may_use_group_memory = true;
};

/// When what happened in the last iteration.
struct ReducerTimes {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> forward_start{};
  std::optional<Clock::time_point> backward_start{};
  std::optional<Clock::time_point> backward_end{};
  std::optional<Clock::time_point> comm_start{};
  std::optional<Clock::time_point> comm_end{};
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  static std::shared_ptr<Reducer> make(ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void prepare_for_forward();
  /// Where it is due: called by all ranks. True if it happened.
  bool rebuild_buckets();
  /// From now on gradients are expected. `outputs`: of forward, where unused parameters are to be found.
  void prepare_for_backward(std::span<const at::Tensor> outputs);
  /// The forward that follows does not synchronise.
  void expect_nothing();
  /// Static graph, first iteration: called while backward runs; everything is reduced at its end.
  void reduce_at_the_end();
  bool is_learning() const;
  /// Whether any output of the last forward will call reduce_at_the_end(). Else the first gradient does, which may be
  /// too early where backwards run inside backwards.
  void set_has_sink(bool has_sink);

  /// An Error if the last backward did not make every parameter ready; says which.
  void check_finalized();
  /// Takes the hooks off: the parameters train alone from now on.
  void detach();
  void set_comm_hook(CommHook hook);
  bool has_comm_hook() const { return static_cast<bool>(hook_); }
  void set_static_graph();
  /// Where the divisor is not the number of ranks: asked once for each backward.
  void set_divisor(std::function<double()> divisor);
  /// Told of every error that leaves backward.
  void set_on_error(std::function<void(const char* what)> call);
  /// Awaited at the end of backward.
  void install_future(Future<void> future);
  /// After a failure: everything begun is forgotten, and buckets are made anew in memory of the new group.
  void reset(ProcessGroupPtr group);
  /// Called after each bucket's gradients are reduced and in place.
  using AfterBucket = std::function<void(const Bucket& bucket)>;
  void set_after_bucket(AfterBucket after);
  /// Called when a backward that came to any of the parameters has ended, whether it synchronised or not.
  void set_at_the_end(std::function<void()> call);

  /// Of the next backward: which rows sparse gradients may have, by parameter.
  void set_sparse_ids(std::map<std::size_t, at::Tensor> ids);

  void record_timeline();
  std::string timeline_json() const;

  /// What a rank that has no more input does for one backward of the others: the same reductions, of zeros.
  void shadow_backward();
  /// And for the others' rebuilding, where that is due.
  void shadow_rebuild();

  /// For communication hooks, while they are called.
  double divisor() const { return divisor_; }
  const ProcessGroupPtr& group() const { return options_.group; }

  // --- to look at
  std::size_t parameter_count() const { return options_.parameters.size(); }
  const std::vector<at::Tensor>& parameters() const { return options_.parameters; }
  std::vector<std::size_t> bucket_sizes() const;
  std::vector<std::vector<std::size_t>> bucket_parameters() const;
  bool has_rebuilt() const { return has_rebuilt_; }
  std::vector<std::size_t> ready_order() const;
  std::uint64_t iterations() const { return iterations_; }
  std::uint64_t buckets_reduced() const { return buckets_reduced_; }
  std::size_t unused_bytes() const;
  /// Whether every iteration so far had the same unused parameters.
  bool graph_looks_static() const { return graph_looks_static_; }
  ReducerTimes times() const;

 private:
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  explicit Reducer(ReducerOptions options);
  void attach();
  std::vector<TensorInfo> infos() const;
  void make_buckets(std::vector<AssignedBucket> assigned);
  void on_gradient(std::size_t parameter);
  void take_gradient(std::size_t parameter);
  void mark_ready(std::size_t parameter);
  void fill(Bucket& bucket, std::size_t slot);
  void fill_sparse(Bucket& bucket);
  void fill_together(Bucket& bucket);
  at::Tensor reduce_sparse(std::size_t parameter, const at::Tensor& gradient);
  void advance_buckets();
  void launch(Bucket& bucket, std::size_t index);
  Work start_reduction(Bucket& bucket, bool async_op);
  bool scales_in_reduction(const at::Tensor& flat) const;
  void start_used_map();
  at::Tensor used_tensor(std::vector<std::int32_t> used) const;
  bool is_globally_unused(std::size_t parameter);
  void queue_finalize();
  void queue_learning();
  /// Runs it at the end of the backward that is under way.
  template <class Run>
  void queue(Run run);
  template <class Run>
  void reported(Run&& run);
  bool is_unused(std::size_t parameter) const;
  void restore_unused(Bucket& bucket);
  void finalize();
  void finish(Bucket& bucket, std::size_t index);
  void find_unused(std::span<const at::Tensor> outputs);
  void check_finalized_locked();
  [[noreturn]] void refuse_ready_twice(std::size_t parameter) const;
  void resolve_divisor();
  bool wants_rebuild() const;
  bool is_rebuild_due() const;
  void agree_on_buckets(const std::string& mine);
  std::string name_of(std::size_t parameter) const;
  void adopt_gradients();

  ReducerOptions options_;
  std::vector<AccumulationHook> hooks_;
  std::unordered_map<const void*, std::size_t> index_of_accumulator_;
  CommHook hook_;
  AfterBucket after_bucket_;
  std::function<void()> at_the_end_;
  bool is_at_the_end_queued_ = false;
  std::shared_ptr<Timeline> timeline_;
  std::function<double()> divisor_source_;
  std::function<void(const char* what)> on_error_;
  bool may_replace_hook_ = false;

  mutable std::mutex mutex_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  std::size_t next_bucket_ = 0;
  bool expects_gradients_ = false;
  std::string failure_;  ///< what the last backward threw
  bool requires_finalize_ = false;
  bool has_marked_unused_ = false;
  std::vector<std::size_t> unused_;
  std::optional<std::vector<std::size_t>> last_unused_;
  bool graph_looks_static_ = true;
  bool has_warned_nothing_unused_ = false;
  std::uint64_t created_graphs_ = 0;
  bool has_warned_strides_ = false;

  std::vector<std::int32_t> local_used_;
  at::Tensor reduced_used_;  ///< where the parameters are
  std::optional<Work> used_work_;

  // Ready in this iteration if stamped with it.
  std::vector<std::uint64_t> ready_stamps_;
  std::uint64_t stamp_ = 0;
  std::vector<std::size_t> ready_order_;
  std::vector<std::size_t> last_ready_order_;
  std::vector<std::size_t> recorded_order_;  ///< for the rebuild

  // Static graph.
  bool has_learnt_ = false;
  std::vector<int> hook_counts_;
  std::vector<int> hooks_left_;
  bool is_end_queued_ = false;
  bool has_sink_ = false;

  std::map<std::size_t, at::Tensor> sparse_ids_;
  std::vector<Future<void>> futures_;
  double divisor_ = 0;  ///< 0: not known yet
  bool has_rebuilt_ = false;
  std::uint64_t iterations_ = 0;
  std::uint64_t reductions_ = 0;  ///< backwards that were reduced, others' included
  std::uint64_t buckets_reduced_ = 0;
  ReducerTimes times_;
  ReducerTimes last_times_;
};

}  // namespace cohort::ddp
