// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "torch/ddp/gradient_copy.h"
#include "torch/ddp/graph_search.h"

namespace cohort::ddp {

// --- beginning and end

std::shared_ptr<Reducer> Reducer::make(ReducerOptions options) {
  struct Maker : Reducer {
    explicit Maker(ReducerOptions its) : Reducer(std::move(its)) {}
  };
  auto reducer = std::make_shared<Maker>(std::move(options));
  reducer->attach();
  return reducer;
}

Reducer::Reducer(ReducerOptions options) : options_(std::move(options)) {
  const auto count = options_.parameters.size();
  local_used_.resize(count);
  ready_stamps_.resize(count);
  hook_counts_.resize(count);
  places_.resize(count);
  auto assigned = assign_buckets(infos(), options_.initial_limits);
  // Last layers have their gradients first.
  std::reverse(assigned.begin(), assigned.end());
  make_buckets(std::move(assigned));
}

std::vector<TensorInfo> Reducer::infos() const {
  std::vector<TensorInfo> all;
  for (std::size_t i = 0; i < options_.parameters.size(); ++i) {
    const auto& each = options_.parameters[i];
    all.push_back({.bytes = each.nbytes(),
                   .dtype = each.scalar_type(),
                   .device = each.device(),
                   .is_sparse = options_.expects_sparse[i]});
  }
  return all;
}

Reducer::~Reducer() {
  detach();
}

void Reducer::attach() {
  for (std::size_t i = 0; i < options_.parameters.size(); ++i) {
    hooks_.emplace_back(options_.parameters[i], [weak = weak_from_this(), i] {
      if (const auto reducer = weak.lock()) reducer->on_gradient(i);
    });
    index_of_accumulator_.emplace(hooks_.back().node(), i);
  }
}

void Reducer::detach() {
  hooks_.clear();
  index_of_accumulator_.clear();
}

void Reducer::make_buckets(std::vector<AssignedBucket> assigned) {
  // The old ones go first: two sets of buckets would double the memory. Gradients that lie in them keep theirs.
  buckets_.clear();
  for (auto& each : assigned) {
    const bool is_sparse = options_.expects_sparse[each.parameters.front()];
    if (is_sparse) {
      buckets_.push_back({.parameters = std::move(each.parameters), .is_sparse = true});
    } else {
      buckets_.push_back(make_dense_bucket(*options_.group, std::move(each.parameters), options_.parameters, each.limit,
                                           options_.may_use_group_memory));
      buckets_.back().scales = scales_in_reduction(buckets_.back().flat);
    }
    const auto& bucket = buckets_.back();
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      places_[bucket.parameters[slot]] = {.bucket = buckets_.size() - 1, .slot = slot};
    }
    if (options_.gradient_as_bucket_view && !is_sparse) adopt_gradients();
  }
}

/// Gradients that are there move into the newest bucket.
void Reducer::adopt_gradients() {
  auto& bucket = buckets_.back();
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    auto& gradient = options_.parameters[bucket.parameters[slot]].mutable_grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided) continue;
    copy_gradient(bucket.views[slot], gradient);
    gradient = bucket.views[slot];
  }
}

void Reducer::set_comm_hook(CommHook hook) {
  const std::lock_guard lock(mutex_);
  if (hook_ && !std::exchange(may_replace_hook_, false)) {
    throw Error("this model has a communication hook already: one is all it can have");
  }
  if (expects_gradients_ || requires_finalize_) {
    throw Error("communication hooks are registered before the first forward");
  }
  hook_ = std::move(hook);
}

void Reducer::set_static_graph() {
  const std::lock_guard lock(mutex_);
  if (iterations_ > 0) throw Error("static_graph is set before the first forward");
  options_.static_graph = true;
}

void Reducer::set_divisor(std::function<double()> divisor) {
  const std::lock_guard lock(mutex_);
  divisor_source_ = std::move(divisor);
}

void Reducer::set_on_error(std::function<void(const char* what)> call) {
  const std::lock_guard lock(mutex_);
  on_error_ = std::move(call);
}

void Reducer::set_after_bucket(AfterBucket after) {
  const std::lock_guard lock(mutex_);
  after_bucket_ = std::move(after);
}

void Reducer::set_at_the_end(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  at_the_end_ = std::move(call);
}

void Reducer::set_sparse_ids(std::map<std::size_t, at::Tensor> ids) {
  const std::lock_guard lock(mutex_);
  sparse_ids_ = std::move(ids);
}

void Reducer::record_timeline() {
  const std::lock_guard lock(mutex_);
  if (timeline_ != nullptr) return;
  timeline_ = std::make_shared<Timeline>();
  timeline_->watch(*options_.group);
}

std::string Reducer::timeline_json() const {
  const std::lock_guard lock(mutex_);
  if (timeline_ == nullptr) return "{}";
  std::vector<Timeline::Contents> contents;
  for (const auto& bucket : buckets_) {
    contents.emplace_back();
    for (const auto each : bucket.parameters) {
      contents.back().emplace_back(options_.names[each], options_.parameters[each].nbytes());
    }
  }
  return timeline_->to_chrome_json(options_.group->rank(), contents);
}

void Reducer::install_future(Future<void> future) {
  const std::lock_guard lock(mutex_);
  futures_.push_back(std::move(future));
}

void Reducer::reset(ProcessGroupPtr group) {
  const std::lock_guard lock(mutex_);
  // What a failed operation left under way has ended, or its memory stays with it.
  for (auto& bucket : buckets_) bucket.reset();
  used_work_.reset();
  expects_gradients_ = false;
  requires_finalize_ = false;
  has_marked_unused_ = false;
  is_end_queued_ = false;
  divisor_ = 0;
  next_bucket_ = 0;
  futures_.clear();
  std::fill(local_used_.begin(), local_used_.end(), 0);
  recorded_order_.clear();
  has_rebuilt_ = false;
  reductions_ = 0;
  has_learnt_ = false;  // ranks may differ in it
  unused_.clear();
  failure_.clear();
  may_replace_hook_ = true;      // a hook of the user's has the old group
  if (group == nullptr) return;  // this rank is out: its memory stays what it is
  options_.group = std::move(group);
  if (timeline_) timeline_->watch(*options_.group);
  std::vector<AssignedBucket> same;
  for (const auto& bucket : buckets_) same.push_back({.parameters = bucket.parameters, .limit = bucket.limit});
  make_buckets(std::move(same));
}

// --- forward

void Reducer::prepare_for_forward() {
  const std::lock_guard lock(mutex_);
  ++iterations_;
  times_ = {};
  times_.forward_start = ReducerTimes::Clock::now();
}

void Reducer::expect_nothing() {
  const std::lock_guard lock(mutex_);
  expects_gradients_ = false;
  is_at_the_end_queued_ = false;
}

bool Reducer::is_learning() const {
  const std::lock_guard lock(mutex_);
  return options_.static_graph && !has_learnt_;
}

void Reducer::set_has_sink(bool has_sink) {
  const std::lock_guard lock(mutex_);
  has_sink_ = has_sink;
}

bool Reducer::wants_rebuild() const {
  return (options_.static_graph || !options_.find_unused_parameters) && !has_rebuilt_;
}

/// The same on all ranks, those included that only follow. A static graph's first iteration shows no order.
bool Reducer::is_rebuild_due() const {
  return wants_rebuild() && reductions_ >= (options_.static_graph ? 2 : 1);
}

bool Reducer::rebuild_buckets() {
  const std::lock_guard lock(mutex_);
  check_finalized_locked();
  if (!is_rebuild_due()) return false;
  // In a join only others may have had gradients so far.
  if (recorded_order_.size() != options_.parameters.size()) {
    agree_on_buckets("");
    return true;
  }
  std::vector<std::size_t> limits{options_.first_cap, options_.bucket_cap};
  if (!options_.bucket_caps.empty()) limits = options_.bucket_caps;
  std::vector<AssignedBucket> assigned;
  if (options_.small_bucket_is_last) {
    std::reverse(recorded_order_.begin(), recorded_order_.end());
    assigned = assign_buckets(infos(), limits, recorded_order_);
    std::reverse(assigned.begin(), assigned.end());
    for (auto& each : assigned) std::reverse(each.parameters.begin(), each.parameters.end());
  } else {
    assigned = assign_buckets(infos(), limits, recorded_order_);
  }
  agree_on_buckets(to_bytes(assigned));
  return true;
}

void Reducer::shadow_rebuild() {
  const std::lock_guard lock(mutex_);
  if (is_rebuild_due()) agree_on_buckets("");
}

/// Ranks may have seen different orders: that of the first rank that has one counts, which is rank 0 unless that has
/// no input.
void Reducer::agree_on_buckets(const std::string& mine) {
  const auto all = options_.group->all_gather_bytes(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& each) { return !each.empty(); });
  if (first == all.end()) throw AssertionError("no rank has seen the order of gradients");
  make_buckets(buckets_from_bytes(*first, options_.parameters.size()));
  has_rebuilt_ = true;
  recorded_order_.clear();
}

void Reducer::prepare_for_backward(std::span<const at::Tensor> outputs) {
  const std::lock_guard lock(mutex_);
  expects_gradients_ = true;
  has_marked_unused_ = false;
  // Of a backward that threw: what it queued for its end never ran.
  is_end_queued_ = false;
  is_at_the_end_queued_ = false;
  next_bucket_ = 0;
  failure_.clear();
  ++stamp_;
  for (auto& bucket : buckets_) bucket.reset();
  ready_order_.clear();
  if (has_learnt_) {
    hooks_left_ = hook_counts_;
    return;
  }
  unused_.clear();
  std::fill(hook_counts_.begin(), hook_counts_.end(), 0);
  if (options_.find_unused_parameters && !options_.static_graph) find_unused(outputs);
}

void Reducer::find_unused(std::span<const at::Tensor> outputs) {
  const auto used = parameters_reached_from(outputs, index_of_accumulator_, options_.parameters.size());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) unused_.push_back(i);
  }
  if (last_unused_ && *last_unused_ != unused_) graph_looks_static_ = false;
  last_unused_ = unused_;
  if (unused_.empty() && !std::exchange(has_warned_nothing_unused_, true)) {
    log(LogLevel::warn,
        "find_unused_parameters is on, but forward used all of them: the search costs a walk over the graph in every "
        "iteration. Leave it out if your model always uses all its parameters");
  }
}

}  // namespace cohort::ddp
