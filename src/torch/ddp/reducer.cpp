// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/debug_level.h>
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/engine.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "torch/ddp/sparse_rows.h"

namespace cohort::ddp {

std::shared_ptr<Reducer> Reducer::make(ReducerOptions options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(options)));
  reducer->attach();
  return reducer;
}

Reducer::Reducer(ReducerOptions options)
    : parameters_(std::move(options.parameters)),
      skip_all_reduce_unused_(options.skip_all_reduce_unused),
      group_(std::move(options.process_group)),
      buckets_(parameters_, std::move(options.buckets), *group_),
      usage_(parameters_, options.usage),
      on_error_(std::move(options.on_error)) {}

void Reducer::attach() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.emplace_back(parameters_.tensors[i], [weak = weak_from_this(), i] {
      if (const auto reducer = weak.lock()) reducer->guarded([&] { reducer->on_gradient(i); });
    });
    accumulators_.emplace(hooks_.back().node(), i);
  }
  averaged_.emplace(parameters_.tensors);
}

void Reducer::detach() {
  averaged_.reset();
  hooks_.clear();
  accumulators_.clear();
}

void Reducer::reset(ProcessGroupPtr process_group) {
  const std::lock_guard lock(mutex_);
  // Operations of the failed backward have ended, or keep their memory alive until they do.
  buckets_.clear();
  buckets_.forget_order();
  usage_.reset();
  state_ = State::idle;
  is_in_graph_ = false;
  next_bucket_ = 0;
  finished_ = 0;
  futures_.clear();
  reductions_ = 0;
  is_hook_replaceable_ = true;
  if (process_group == nullptr) return;
  group_ = std::move(process_group);
  if (timeline_) timeline_->watch(*group_);
  buckets_.move_to(*group_);
}

// --- settings

void Reducer::set_comm_hook(CommHook hook) {
  const std::lock_guard lock(mutex_);
  if (hook_ && !std::exchange(is_hook_replaceable_, false)) {
    throw Error("this model has a communication hook already, and it can have only one");
  }
  if (state_ != State::idle) throw Error("communication hooks have to be registered before the first forward");
  hook_ = std::move(hook);
  ++hooks_set_;
}

void Reducer::set_static_graph() {
  const std::lock_guard lock(mutex_);
  if (iterations_ > 0) throw Error("static_graph has to be set before the first forward");
  usage_.set_static_graph();
}

void Reducer::set_divisor(std::function<double()> divisor) {
  const std::lock_guard lock(mutex_);
  divisor_source_ = std::move(divisor);
}

void Reducer::set_after_bucket(std::function<void(const Bucket& bucket)> call, When when) {
  const std::lock_guard lock(mutex_);
  after_bucket_ = std::move(call);
  when_after_bucket_ = when;
  ++hooks_set_;
}

void Reducer::add_future(Future<void> future) {
  const std::lock_guard lock(mutex_);
  futures_.push_back(std::move(future));
}

void Reducer::set_sparse_ids(std::map<std::size_t, at::Tensor> ids) {
  const std::lock_guard lock(mutex_);
  sparse_ids_ = std::move(ids);
}

// --- around forward

void Reducer::prepare_for_forward() {
  const std::lock_guard lock(mutex_);
  // torch::load() and set_data() can give a parameter another accumulator, on which no hook would fire: its gradient
  // would not be averaged, in silence. Looking costs some nanoseconds for each parameter.
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(parameters_.tensors[i]).get() == hooks_[i].node()) continue;
    detach();
    attach();
    break;
  }
  ++iterations_;
  times_ = {.forward_start = IterationTimes::Clock::now()};
}

bool Reducer::wants_rebuild() const {
  return usage_.mode() != UsageMode::searched && !buckets_.has_rebuilt();
}

/// The same on all ranks, including those that have no input. The first iteration of a static graph shows no order.
bool Reducer::is_rebuild_due() const {
  return wants_rebuild() && reductions_ >= (usage_.mode() == UsageMode::static_graph ? 2 : 1);
}

void Reducer::rebuild_buckets() {
  const std::lock_guard lock(mutex_);
  check_finalized_locked();
  if (is_rebuild_due()) buckets_.rebuild(*group_);
}

void Reducer::prepare_for_backward(std::span<const at::Tensor> outputs, bool has_sink) {
  const std::lock_guard lock(mutex_);
  state_ = State::forward_done;
  has_sink_ = has_sink;
  is_local_ = false;
  // Still set if the last backward threw: what it queued for its end never ran.
  is_in_graph_ = false;
  next_bucket_ = 0;
  finished_ = 0;
  ready_order_.clear();
  buckets_.clear();
  usage_.start_iteration(outputs, accumulators_);
}

void Reducer::skip_backward() {
  const std::lock_guard lock(mutex_);
  state_ = State::idle;
  is_local_ = true;
  is_in_graph_ = false;
}

bool Reducer::is_learning() const {
  const std::lock_guard lock(mutex_);
  return usage_.is_learning();
}

// --- backward

template <class Run>
void Reducer::guarded(Run&& run) {
  try {
    run();
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    if (state_ == State::learning || state_ == State::backward_running || state_ == State::finalising) {
      state_ = State::failed;
      failure_ = e.what();
    }
    if (on_error_) on_error_(e.what(), iterations_);
    throw;
  }
}

template <class Run>
void Reducer::queue(Run run) {
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), run] {
    if (const auto reducer = weak.lock()) reducer->guarded([&] { run(*reducer); });
  });
}

void Reducer::on_gradient(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::idle && is_in_graph_ && !buckets_.has_graph()) refuse_unexpected(parameter);
  if (state_ == State::idle && is_local_) usage_.check_is_reduced(parameter);
  usage_.mark_used(parameter);
  if (state_ != State::forward_done && state_ != State::learning && state_ != State::backward_running) return;
  if (!times_.backward_start) times_.backward_start = IterationTimes::Clock::now();
  if (usage_.is_learning()) {
    usage_.count_use(parameter);
    if (!has_sink_) queue_learning();
    return;
  }
  ready_order_.push_back(parameter);
  if (state_ == State::forward_done) start_backward();
  if (!usage_.is_last_use(parameter)) return;
  if (wants_rebuild()) buckets_.record_order(parameter);
  mark_ready(parameter);
  finish_reduced(parameter);
}

void Reducer::enter_graph() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_in_graph_, true)) return;
  queue([](Reducer& reducer) {
    const std::lock_guard its_lock(reducer.mutex_);
    reducer.is_in_graph_ = false;
  });
}

void Reducer::start_learning() {
  const std::lock_guard lock(mutex_);
  if (usage_.is_learning()) queue_learning();
}

void Reducer::queue_learning() {
  if (state_ != State::forward_done) return;
  state_ = State::learning;
  queue([](Reducer& reducer) {
    const std::lock_guard lock(reducer.mutex_);
    if (!reducer.usage_.has_counted_uses()) {
      // It reached no parameter, as a gradient with respect to the input: the backward to learn from is to come.
      reducer.state_ = State::forward_done;
      return;
    }
    reducer.usage_.finish_learning(*reducer.group_);
    reducer.start_backward();
    for (std::size_t i = 0; i < reducer.parameters_.size(); ++i) {
      if (!reducer.usage_.is_unused(i)) reducer.mark_ready(i);
    }
  });
}

void Reducer::resolve_divisor() {
  divisor_ = divisor_source_ ? divisor_source_() : static_cast<double>(group_->size());
}

/// At the first gradient: parameters that will get none need not be waited for.
void Reducer::start_backward() {
  state_ = State::backward_running;
  resolve_divisor();
  for (const auto each : usage_.unused()) mark_ready(each);
}

void Reducer::mark_ready(std::size_t parameter) {
  if (buckets_.is_filled(parameter)) refuse_ready_twice(parameter);
  const auto index = buckets_.fill(parameter, hook_ ? 1 : divisor_, usage_);
  if (index == next_bucket_ && buckets_[index].pending == 0) launch_full_buckets();
}

void Reducer::launch_full_buckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_) {
    launch(buckets_[next_bucket_], next_bucket_);
  }
  if (next_bucket_ < buckets_.size()) return;
  times_.backward_end = IterationTimes::Clock::now();
  usage_.start_reduction(*group_);
  queue([](Reducer& reducer) {
    const std::lock_guard lock(reducer.mutex_);
    reducer.finalise();
  });
}

void Reducer::launch(Bucket& bucket, std::size_t index) {
  if (!times_.comm_start) times_.comm_start = IterationTimes::Clock::now();
  if (skip_all_reduce_unused_ && usage_.have_nothing_to_reduce(bucket.parameters)) {
    bucket.is_skipped = true;
    return;
  }
  ++buckets_reduced_;
  if (hook_) {
    launch_hook(bucket, index);
    return;
  }
  if (bucket.is_sparse) {
    const at::NoGradGuard no_grad;
    bucket.flat = all_reduce_sparse(bucket.parameters.front(), bucket.flat);
    return;
  }
  // Nothing is left to overlap the last bucket with, unless earlier buckets' parameters are stepped meanwhile: the
  // thread that waits for it reduces it in finish().
  const bool is_last = index + 1 == buckets_.size() && usage_.mode() != UsageMode::searched;
  if (is_last && !after_bucket_) return;
  bucket.work = all_reduce(bucket, true);
  if (timeline_) timeline_->bucket_launched(index, bucket.bytes(), bucket.work->sequence());
}

void Reducer::launch_hook(Bucket& bucket, std::size_t index) {
  std::vector<at::Tensor> parameters;
  for (const auto each : bucket.parameters) parameters.push_back(parameters_.tensors[each]);
  GradBucket seen(index, buckets_.size(), bucket.flat, bucket.views, std::move(parameters));
  const at::NoGradGuard no_grad;
  const auto begin = Timeline::Clock::now();
  bucket.future = hook_(seen);
  if (!timeline_) return;
  // As part of the chain, so that the time is recorded when backward returns.
  bucket.future = bucket.future->then([timeline = timeline_, index, bytes = bucket.bytes(), begin](at::Tensor result) {
    timeline->bucket_reduced(index, bytes, begin, Timeline::Clock::now());
    return result;
  });
}

Work Reducer::all_reduce(const Bucket& bucket, bool async_op) {
  // A blocking reduction is one that the end of backward waits for, on the caller's stream, which autograd has put
  // behind the gradients' streams.
  auto* const stream = async_op ? bucket.stream : current_stream(bucket.flat);
  const auto op = bucket.scales_in_reduction && divisor_ != 1 ? ReduceOp::premul_sum(1.0 / divisor_) : ReduceOp::sum();
  return group_->all_reduce(buffer_of(bucket.flat), {.op = op, .async_op = async_op, .stream = stream});
}

at::Tensor Reducer::all_reduce_sparse(std::size_t parameter, const at::Tensor& gradient) {
  const auto known = sparse_ids_.find(parameter);
  if (known == sparse_ids_.end()) return sparse_all_reduce(*group_, gradient);
  return all_reduce_rows(*group_, gradient, known->second, parameters_.describe(parameter));
}

/// While gradients are still to come. On the thread and stream of the bucket's own gradients, which the end of backward
/// puts before what comes next. A recorded step does it at the end, like every other rank's.
void Reducer::finish_reduced(std::size_t parameter) {
  if (!after_bucket_ || when_after_bucket_ == When::at_end || is_capturing()) return;
  for (; finished_ < next_bucket_ && next_bucket_ < buckets_.size(); ++finished_) {
    auto& bucket = buckets_[finished_];
    const bool is_reduced = bucket.is_sparse || bucket.is_skipped || (bucket.work && bucket.work->is_completed());
    if (!is_reduced || bucket.stream != current_stream(parameters_.tensors[parameter])) return;
    for (const auto each : bucket.parameters) {
      if (!usage_.knows_use_of(each)) return;
    }
    finish(bucket, finished_);
  }
}

// --- the end of backward

void Reducer::finalise() {
  state_ = State::finalising;
  for (; finished_ < buckets_.size(); ++finished_) finish(buckets_[finished_], finished_);
  // The gradients are complete: an error from here on is reported, but the next iteration can go on.
  state_ = State::idle;
  for (const auto& each : std::exchange(futures_, {})) each.value(group_->timeout());
  usage_.finish_iteration();
  sparse_ids_.clear();
  ++reductions_;
  times_.comm_end = IterationTimes::Clock::now();
  last_times_ = times_;
  last_ready_order_ = ready_order_;
  if (timeline_) timeline_->iteration_ended(times_);
  if (wants_rebuild() && !ready_order_.empty()) {
    for (const auto each : usage_.unused()) buckets_.record_order(each);
  }
}

void Reducer::finish(Bucket& bucket, std::size_t index) {
  if (bucket.is_skipped) {
    BucketSet::restore_unused(bucket, usage_);
    return;
  }
  const at::NoGradGuard no_grad;  // for what the communication hook has left to do as well
  buckets_.hand_out(bucket, wait_for(bucket, index), usage_);
  if (after_bucket_) after_bucket_(bucket);
}

at::Tensor Reducer::wait_for(Bucket& bucket, std::size_t index) {
  if (bucket.future) {
    auto result = bucket.future->value(group_->timeout());
    bucket.future.reset();
    if (!result.defined() || (!bucket.is_sparse && result.numel() != bucket.flat.numel())) {
      throw Error(fmt::format("the communication hook returned {} for bucket {}, which has {} elements",
                              result.defined() ? fmt::format("{} elements", result.numel()) : "an undefined tensor",
                              index, bucket.flat.numel()));
    }
    return result;
  }
  if (bucket.work) {
    bucket.work->wait_on(current_stream(bucket.flat));
    bucket.work.reset();
  } else if (!bucket.is_sparse) {
    const auto work = all_reduce(bucket, false);
    if (timeline_) timeline_->bucket_launched(index, bucket.bytes(), work.sequence());
  }
  return bucket.flat;
}

void Reducer::check_finalized() const {
  const std::lock_guard lock(mutex_);
  check_finalized_locked();
}

void Reducer::check_finalized_locked() const {
  if (state_ == State::forward_done && usage_.is_learning() && usage_.has_counted_uses()) {
    throw Error(
        "the last backward was not reduced: with static_graph the loss of the first iteration has to be computed from "
        "what forward returned");
  }
  if (state_ == State::failed) {
    throw Error(
        fmt::format("the last backward failed: {}. The gradients it left are this rank's own: zero them and continue "
                    "with update_process_group",
                    failure_));
  }
  if (state_ != State::backward_running && state_ != State::finalising) return;
  std::vector<std::string> names;
  const bool with_names = debug_level() != DebugLevel::off;
  for (const auto each : buckets_.unfilled()) {
    names.push_back(with_names ? parameters_.describe(each) : std::to_string(each));
  }
  const auto* const advice =
      usage_.mode() == UsageMode::static_graph ? "the graph has changed, but static_graph promises that it does not"
      : usage_.mode() == UsageMode::searched
          ? "some of forward's outputs were not used for the loss, or not in this backward"
          : "forward did not use them for the loss: set find_unused_parameters, or leave them out of the model";
  throw Error(fmt::format("the last backward did not finish: on rank {} parameters {} got no gradient: {}{}",
                          group_->rank(), fmt::join(names, ", "), advice,
                          with_names ? "" : " (COHORT_DEBUG=info adds their names)"));
}

void Reducer::refuse_ready_twice(std::size_t parameter) const {
  throw Error(fmt::format(
      "parameter {} got its gradient twice in one backward: it is used outside forward as well, or by several "
      "backwards inside one (activation checkpointing of the same layer){}. static_graph allows this if the graph does "
      "not change",
      parameters_.describe(parameter),
      usage_.unused().empty() ? ""
                              : "; or forward's outputs did not show that it is used, and it was taken as unused"));
}

void Reducer::refuse_unexpected(std::size_t parameter) {
  is_in_graph_ = false;  // what was queued for the end of this backward does not run
  throw Error(fmt::format(
      "the gradient of parameter {} on rank {} would not be averaged: this is a second backward after one forward, or "
      "a forward in no_sync came between the forward and its backward. Zero the gradients; then call backward once for "
      "the sum of the losses, or forward and backward in turn (with all but the last pair in no_sync to accumulate)",
      parameters_.describe(parameter), group_->rank()));
}

// --- ranks without input

void Reducer::shadow_rebuild() {
  const std::lock_guard lock(mutex_);
  if (!is_rebuild_due()) return;
  buckets_.forget_order();  // the order counts of ranks that have input
  buckets_.rebuild(*group_);
}

void Reducer::shadow_backward() {
  const std::lock_guard lock(mutex_);
  ++iterations_;
  resolve_divisor();
  usage_.follow_learning(*group_);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    // In memory of their own: the real buckets hold this rank's last gradients.
    auto zeros = buckets_.make_zeros(i, *group_);
    launch(zeros, i);
    if (!zeros.is_skipped) wait_for(zeros, i);
  }
  ++reductions_;
  usage_.reduce_nothing(*group_);
  for (const auto& each : std::exchange(futures_, {})) each.value(group_->timeout());
}

// --- observing

std::uint64_t Reducer::iterations() const {
  const std::lock_guard lock(mutex_);
  return iterations_;
}

ReductionMode Reducer::mode() const {
  const std::lock_guard lock(mutex_);
  return {.has_failed = state_ == State::failed,
          .is_idle = state_ == State::idle,
          .is_attached = !hooks_.empty(),
          .is_learning = usage_.is_learning(),
          .is_rebuild_due = is_rebuild_due(),
          .has_divisor = static_cast<bool>(divisor_source_),
          .bucket_builds = buckets_.builds(),
          .hooks = hooks_set_};
}

ReducerStatistics Reducer::statistics() const {
  const std::lock_guard lock(mutex_);
  ReducerStatistics all{.iterations = iterations_,
                        .buckets_reduced = buckets_reduced_,
                        .has_rebuilt = buckets_.has_rebuilt(),
                        .unused_bytes = usage_.unused_bytes(),
                        .graph_looks_static = usage_.looks_static(),
                        .times = last_times_,
                        .ready_order = last_ready_order_};
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const auto& bucket = buckets_[i];
    all.bucket_bytes.push_back(bucket.is_sparse ? parameters_.tensors[bucket.parameters.front()].nbytes()
                                                : bucket.bytes());
    all.bucket_parameters.push_back(bucket.parameters);
  }
  return all;
}

void Reducer::record_timeline() {
  const std::lock_guard lock(mutex_);
  if (timeline_ != nullptr) return;
  timeline_ = std::make_shared<Timeline>();
  timeline_->watch(*group_);
}

std::string Reducer::timeline_json() const {
  const std::lock_guard lock(mutex_);
  if (timeline_ == nullptr) return "{}";
  std::vector<Timeline::Contents> contents(buckets_.size());
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (const auto each : buckets_[i].parameters) {
      contents[i].emplace_back(parameters_.names[each], parameters_.tensors[each].nbytes());
    }
  }
  return timeline_->to_chrome_json(group_->rank(), contents);
}

}  // namespace cohort::ddp
