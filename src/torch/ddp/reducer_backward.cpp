// SPDX-License-Identifier: BSD-3-Clause
//
// What the reducer does while backward runs and when it ends: reducer.h.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/engine.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "torch/ddp/gradient_copy.h"
#include "torch/ddp/reducer.h"

namespace cohort::ddp {

template <class Run>
void Reducer::reported(Run&& run) {
  try {
    run();
  } catch (const std::exception& e) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = e.what();
    }
    if (on_error_) on_error_(e.what());
    throw;
  }
}

template <class Run>
void Reducer::queue(Run run) {
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), run] {
    if (const auto reducer = weak.lock()) reducer->reported([&] { run(*reducer); });
  });
}

void Reducer::on_gradient(std::size_t parameter) {
  reported([&] { take_gradient(parameter); });
}

void Reducer::take_gradient(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const bool is_static_first = options_.static_graph && !has_learnt_;
  if (at_the_end_ && !std::exchange(is_at_the_end_queued_, true)) {
    queue([](Reducer& reducer) {
      reducer.is_at_the_end_queued_ = false;
      reducer.at_the_end_();
    });
  }
  if (options_.find_unused_parameters || is_static_first) {
    if (options_.parameters[parameter].grad().defined()) local_used_[parameter] = 1;
  }
  if (!expects_gradients_) return;
  if (!times_.backward_start) times_.backward_start = ReducerTimes::Clock::now();
  if (is_static_first) {
    ++hook_counts_[parameter];
    if (!has_sink_) queue_learning();
    return;
  }
  ready_order_.push_back(parameter);
  if (!std::exchange(has_marked_unused_, true)) {
    for (const auto each : unused_) mark_ready(each);
  }
  if (options_.static_graph) {
    if (hooks_left_[parameter] == 0) {
      throw Error(
          fmt::format("the training graph has changed: parameter {} got more gradients than in the first "
                      "iteration, and static_graph promises that it does not",
                      name_of(parameter)));
    }
    if (--hooks_left_[parameter] > 0) return;
  }
  if (wants_rebuild()) recorded_order_.push_back(parameter);
  mark_ready(parameter);
}

void Reducer::reduce_at_the_end() {
  const std::lock_guard lock(mutex_);
  if (options_.static_graph && expects_gradients_ && !has_learnt_) queue_learning();
}

void Reducer::queue_learning() {
  if (std::exchange(is_end_queued_, true)) return;
  queue([](Reducer& reducer) {
    const std::lock_guard held(reducer.mutex_);
    reducer.is_end_queued_ = false;
    reducer.has_learnt_ = true;
    for (std::size_t i = 0; i < reducer.hook_counts_.size(); ++i) {
      if (reducer.hook_counts_[i] == 0) reducer.unused_.push_back(i);
    }
    reducer.has_marked_unused_ = true;
    for (std::size_t i = 0; i < reducer.hook_counts_.size(); ++i) reducer.mark_ready(i);
  });
}

void Reducer::resolve_divisor() {
  if (divisor_ != 0) return;
  divisor_ = divisor_source_ ? divisor_source_() : static_cast<double>(options_.group->size());
}

void Reducer::mark_ready(std::size_t parameter) {
  if (ready_stamps_[parameter] == stamp_) refuse_ready_twice(parameter);
  ready_stamps_[parameter] = stamp_;
  requires_finalize_ = true;
  resolve_divisor();
  const auto place = places_[parameter];
  auto& bucket = buckets_[place.bucket];
  bucket.is_sparse ? fill_sparse(bucket) : fill(bucket, place.slot);
  if (--bucket.pending > 0) return;
  // Here, on the thread and stream of its last gradient: whoever launches it may be on those of another device.
  if (options_.batches_copies && !bucket.is_sparse) fill_together(bucket);
  bucket.stream = current_stream(options_.parameters[parameter]);
  if (place.bucket == next_bucket_) advance_buckets();
}

void Reducer::fill(Bucket& bucket, std::size_t slot) {
  const auto parameter = bucket.parameters[slot];
  const auto& view = bucket.views[slot];
  auto& gradient = options_.parameters[parameter].mutable_grad();
  const bool scales_here = !hook_ && !bucket.scales && !options_.batches_copies;
  if (!gradient.defined()) {
    clear_gradient(view);
    return;
  }
  if (gradient.layout() != at::kStrided) {
    throw Error(fmt::format("parameter {} has a sparse gradient where a dense one was expected", name_of(parameter)));
  }
  if (gradient.scalar_type() != bucket.flat.scalar_type()) {
    throw Error(fmt::format("the gradient of parameter {} is {}, its bucket {}", name_of(parameter),
                            c10::toString(gradient.scalar_type()), c10::toString(bucket.flat.scalar_type())));
  }
  if (gradient.requires_grad() && created_graphs_++ % 1000 == 0) {
    log(LogLevel::warn,
        "backward with create_graph: gradients' values are averaged over the ranks, but what is computed from them (a "
        "gradient of gradients) sees this rank's part alone, and needs gradient_as_bucket_view = false");
  }
  // The bucket is this gradient's memory: should nobody have used the parameter, it is to be what it was.
  if (options_.gradient_as_bucket_view && is_unused(parameter)) {
    const at::NoGradGuard no_grad;
    bucket.kept.emplace_back(slot, gradient.clone());
  }
  if (is_same_memory(gradient, view)) {
    if (scales_here) {
      const at::NoGradGuard no_grad;
      view.div_(divisor_);
    }
    return;
  }
  if (gradient.strides() != view.strides() && gradient.numel() > 1 && !std::exchange(has_warned_strides_, true)) {
    log(LogLevel::warn,
        fmt::format("the gradient of parameter {} has other strides ({}) than its parameter ({}): "
                    "copying it is slower; it is right all the same",
                    name_of(parameter), fmt::join(gradient.strides(), ", "), fmt::join(view.strides(), ", ")));
  }
  if (options_.batches_copies) {
    bucket.uncopied.push_back(slot);
    return;
  }
  if (scales_here) {
    const at::NoGradGuard no_grad;
    auto out = view;
    at::mul_out(out, gradient.detach(), at::scalar_tensor(1.0 / divisor_, gradient.options()));
  } else {
    copy_gradient(view, gradient);
  }
  if (options_.gradient_as_bucket_view) gradient = view;
}

/// The copies and the division that fill() left.
void Reducer::fill_together(Bucket& bucket) {
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> gradients;
  for (const auto slot : bucket.uncopied) {
    views.push_back(bucket.views[slot]);
    gradients.push_back(options_.parameters[bucket.parameters[slot]].grad());
  }
  copy_gradients(views, gradients);
  if (!hook_ && !bucket.scales && divisor_ != 1) {
    const at::NoGradGuard no_grad;
    bucket.flat.div_(divisor_);
  }
  if (options_.gradient_as_bucket_view) {
    for (const auto slot : bucket.uncopied) {
      options_.parameters[bucket.parameters[slot]].mutable_grad() = bucket.views[slot];
    }
  }
  bucket.uncopied.clear();
}

void Reducer::fill_sparse(Bucket& bucket) {
  const auto parameter = bucket.parameters.front();
  const auto& gradient = options_.parameters[parameter].grad();
  if (!gradient.defined()) {
    throw Error(fmt::format("parameter {} was not used: one with sparse gradients must be, in every iteration",
                            name_of(parameter)));
  }
  if (!gradient.is_sparse()) {
    throw Error(fmt::format("parameter {} has a dense gradient where a sparse one was expected", name_of(parameter)));
  }
  const at::NoGradGuard no_grad;
  bucket.flat = hook_ ? gradient.detach() : gradient.detach().div(divisor_);
}

/// With the rows known beforehand: one dense sum over them, which every rank has in the same order.
at::Tensor Reducer::reduce_sparse(std::size_t parameter, const at::Tensor& gradient) {
  const auto known = sparse_ids_.find(parameter);
  if (known == sparse_ids_.end()) return sparse_all_reduce(*options_.group, gradient);
  const auto ids = known->second.to(gradient.device());
  const auto mine = gradient.coalesce();
  const auto rows = mine.indices().select(0, 0);
  auto places = at::searchsorted(ids, rows);
  if (ids.numel() == 0 ? rows.numel() > 0 : !at::equal(ids.index_select(0, places.clamp_max(ids.numel() - 1)), rows)) {
    throw Error(
        fmt::format("the sparse gradient of parameter {} has a row that is not among its ids", name_of(parameter)));
  }
  auto sizes = mine.values().sizes().vec();
  sizes[0] = ids.numel();
  auto dense = at::zeros(sizes, mine.values().options());
  dense.index_add_(0, places, mine.values());
  options_.group->all_reduce(buffer_of(dense), {.stream = current_stream(dense)});
  return at::sparse_coo_tensor(ids.unsqueeze(0), dense, gradient.sizes()).coalesce();
}

bool Reducer::scales_in_reduction(const at::Tensor& flat) const {
  return is_reducible(dtype_from(flat.scalar_type()), ReduceOp::premul_sum(1)) &&
         options_.group->capabilities(device_from(flat.device())).premul_sum;
}

Work Reducer::start_reduction(Bucket& bucket, bool async_op) {
  // What is not asynchronous is what backward's end waits for, on the stream of who called it; that has been put behind
  // those of the gradients.
  auto* const stream = async_op ? bucket.stream : current_stream(bucket.flat);
  const auto op = bucket.scales && divisor_ != 1 ? ReduceOp::premul_sum(1.0 / divisor_) : ReduceOp::sum();
  return options_.group->all_reduce(buffer_of(bucket.flat), {.op = op, .async_op = async_op, .stream = stream});
}

void Reducer::advance_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    launch(buckets_[next_bucket_], next_bucket_);
    ++next_bucket_;
  }
  if (next_bucket_ < buckets_.size()) return;
  times_.backward_end = ReducerTimes::Clock::now();
  if (options_.find_unused_parameters && !options_.static_graph) start_used_map();
  queue_finalize();
}

void Reducer::launch(Bucket& bucket, std::size_t index) {
  if (!times_.comm_start) times_.comm_start = ReducerTimes::Clock::now();
  if (options_.skip_all_reduce_unused && !unused_.empty() &&
      std::all_of(bucket.parameters.begin(), bucket.parameters.end(), [&](auto each) { return is_unused(each); })) {
    bucket.is_skipped = true;
    return;
  }
  ++buckets_reduced_;
  if (hook_) {
    std::vector<at::Tensor> parameters;
    for (const auto each : bucket.parameters) parameters.push_back(options_.parameters[each]);
    GradBucket seen(index, buckets_.size(), bucket.flat, bucket.views, std::move(parameters));
    const at::NoGradGuard no_grad;
    const auto begin = Timeline::Clock::now();
    bucket.future = hook_(seen);
    if (timeline_) {
      bucket.future->then([timeline = timeline_, index, bytes = bucket.bytes(), begin](const at::Tensor& /*result*/) {
        timeline->bucket_reduced(index, bytes, begin, Timeline::Clock::now());
      });
    }
    return;
  }
  if (bucket.is_sparse) {
    const at::NoGradGuard no_grad;
    bucket.flat = reduce_sparse(bucket.parameters.front(), bucket.flat);
    return;
  }
  // Nothing is left to overlap the last one with: who waits for it does it.
  const bool is_last = index + 1 == buckets_.size() && !options_.find_unused_parameters;
  if (is_last) return;
  bucket.work = start_reduction(bucket, true);
  if (timeline_) timeline_->bucket_launched(index, bucket.bytes(), bucket.work->sequence());
}

void Reducer::start_used_map() {
  reduced_used_ = used_tensor(local_used_);
  used_work_ =
      options_.group->all_reduce(buffer_of(reduced_used_), {.async_op = true, .stream = current_stream(reduced_used_)});
}

/// A copy, so that the map can be cleared meanwhile; on the parameters' device, where the group has a backend.
at::Tensor Reducer::used_tensor(std::vector<std::int32_t> used) const {
  const auto count = static_cast<std::int64_t>(used.size());
  return at::from_blob(used.data(), {count}, at::kInt).to(options_.parameters.front().device(), at::kInt, false, true);
}

bool Reducer::is_globally_unused(std::size_t parameter) {
  if (!options_.find_unused_parameters && !options_.static_graph) return false;
  if (local_used_[parameter] != 0) return false;
  if (options_.static_graph) return is_unused(parameter);  // every rank has the same set
  if (used_work_) {
    used_work_->wait_on(current_stream(reduced_used_));
    used_work_.reset();
    reduced_used_ = reduced_used_.cpu();
  }
  return reduced_used_.data_ptr<std::int32_t>()[parameter] == 0;
}

bool Reducer::is_unused(std::size_t parameter) const {
  return std::binary_search(unused_.begin(), unused_.end(), parameter);
}

void Reducer::restore_unused(Bucket& bucket) {
  for (const auto& [slot, gradient] : std::exchange(bucket.kept, {})) {
    if (bucket.is_skipped || is_globally_unused(bucket.parameters[slot])) copy_gradient(bucket.views[slot], gradient);
  }
}

void Reducer::queue_finalize() {
  queue([](Reducer& reducer) {
    const std::lock_guard lock(reducer.mutex_);
    reducer.finalize();
  });
}

void Reducer::finalize() {
  expects_gradients_ = false;
  for (std::size_t i = 0; i < buckets_.size(); ++i) finish(buckets_[i], i);
  requires_finalize_ = false;
  divisor_ = 0;
  for (const auto& each : std::exchange(futures_, {})) each.value(options_.group->timeout());
  if (used_work_) {
    used_work_->wait();
    used_work_.reset();
  }
  if (options_.find_unused_parameters && !options_.static_graph) {
    std::fill(local_used_.begin(), local_used_.end(), 0);
  }
  sparse_ids_.clear();
  ++reductions_;
  times_.comm_end = ReducerTimes::Clock::now();
  last_times_ = times_;
  if (timeline_ && times_.backward_start && times_.forward_start && times_.backward_end) {
    timeline_->span("forward", "compute", *times_.forward_start, *times_.backward_start);
    timeline_->span("backward", "compute", *times_.backward_start, *times_.backward_end);
    timeline_->span("wait for the rest", "compute", *times_.backward_end, *times_.comm_end);
  }
  last_ready_order_ = ready_order_;
  if (options_.static_graph && wants_rebuild() && !recorded_order_.empty()) {
    for (const auto each : unused_) recorded_order_.push_back(each);
  }
}

void Reducer::finish(Bucket& bucket, std::size_t index) {
  if (bucket.is_skipped) return restore_unused(bucket);
  const at::NoGradGuard no_grad;
  at::Tensor result = bucket.flat;
  if (bucket.future) {
    result = bucket.future->value(options_.group->timeout());
    if (!result.defined() || (!bucket.is_sparse && result.numel() != bucket.flat.numel())) {
      throw Error(fmt::format("the communication hook gave back {} for bucket {}, which has {} elements",
                              result.defined() ? fmt::format("{} elements", result.numel()) : "nothing", index,
                              bucket.flat.numel()));
    }
    bucket.future.reset();
  } else if (bucket.work) {
    bucket.work->wait_on(current_stream(bucket.flat));
    bucket.work.reset();
  } else if (!bucket.is_sparse) {
    const auto work = start_reduction(bucket, false);
    if (timeline_) timeline_->bucket_launched(index, bucket.bytes(), work.sequence());
  }
  if (bucket.is_sparse) {
    options_.parameters[bucket.parameters.front()].mutable_grad() = result;
    if (after_bucket_) after_bucket_(bucket);
    return;
  }
  if (result.data_ptr() != bucket.flat.data_ptr()) bucket.flat.copy_(result.reshape({-1}));
  std::vector<at::Tensor> copied_to;
  std::vector<at::Tensor> copied_from;
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    const auto parameter = bucket.parameters[slot];
    auto& gradient = options_.parameters[parameter].mutable_grad();
    const auto& view = bucket.views[slot];
    if (gradient.defined() && is_same_memory(gradient, view)) continue;
    if (is_globally_unused(parameter)) continue;
    if (options_.gradient_as_bucket_view) {
      if (gradient.defined()) {
        throw Error(
            fmt::format("the gradient of parameter {} was replaced during backward; with "
                        "gradient_as_bucket_view it lies in its bucket",
                        name_of(parameter)));
      }
      gradient = view;
    } else if (gradient.defined()) {
      copied_to.push_back(gradient);
      copied_from.push_back(view);
    } else {
      gradient = view.clone();
    }
  }
  copy_gradients(copied_to, copied_from);
  restore_unused(bucket);
  if (after_bucket_) after_bucket_(bucket);
}

void Reducer::shadow_backward() {
  const std::lock_guard lock(mutex_);
  ++iterations_;
  resolve_divisor();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    // In memory of its own: the gradients in the real buckets are this rank's last.
    const auto& real = buckets_[i];
    Bucket zeros;
    if (real.is_sparse) {
      const auto& parameter = options_.parameters[real.parameters.front()];
      zeros.parameters = real.parameters;
      zeros.is_sparse = true;
      // As embeddings make them: rows that are dense, none of them.
      auto no_rows = parameter.sizes().vec();
      no_rows[0] = 0;
      zeros.flat = at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                                         at::empty(no_rows, parameter.options()), parameter.sizes());
    } else {
      zeros = make_dense_bucket(*options_.group, real.parameters, options_.parameters, real.limit, false);
      zeros.scales = real.scales;
      zeros.flat.zero_();
      zeros.stream = current_stream(zeros.flat);
    }
    launch(zeros, i);
    if (zeros.future) {
      zeros.future->value(options_.group->timeout());
    } else if (zeros.work) {
      zeros.work->wait();
    } else if (!zeros.is_sparse && !zeros.is_skipped) {
      start_reduction(zeros, false);
    }
  }
  divisor_ = 0;
  ++reductions_;
  if (options_.find_unused_parameters && !options_.static_graph) {
    // Zeros, not the map of this rank's last iteration: what nobody used is unused.
    const auto nothing = used_tensor(std::vector<std::int32_t>(local_used_.size()));
    options_.group->all_reduce(buffer_of(nothing), {.stream = current_stream(nothing)});
  }
}

}  // namespace cohort::ddp
