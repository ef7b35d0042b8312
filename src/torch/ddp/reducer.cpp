// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/debug_level.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/engine.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "torch/ddp/graph_search.h"

namespace cohort::ddp {

namespace {

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// Straight from memory to memory where both are of the host and laid out alike: a call of a tensor's copy_ costs more
/// than most gradients.
void copy_gradient(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu() && from.is_cpu() && to.strides() == from.strides() && from.is_non_overlapping_and_dense()) {
    if (to.nbytes() > 0) std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
    return;
  }
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

void clear(const at::Tensor& view) {
  if (view.is_cpu() && view.is_non_overlapping_and_dense()) {
    if (view.nbytes() > 0) std::memset(view.data_ptr(), 0, view.nbytes());
    return;
  }
  const at::NoGradGuard no_grad;
  view.zero_();
}

}  // namespace

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
  std::vector<TensorInfo> infos;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& each = options_.parameters[i];
    infos.push_back({.bytes = each.nbytes(),
                     .dtype = each.scalar_type(),
                     .device = each.device(),
                     .is_sparse = options_.expects_sparse[i]});
  }
  auto assigned = assign_buckets(infos, options_.initial_limits);
  // Last layers have their gradients first.
  std::reverse(assigned.begin(), assigned.end());
  make_buckets(std::move(assigned));
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
  if (hook_) throw Error("this model has a communication hook already: one is all it can have");
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
  // Hooks of a group stay: it ends with the timeline.
  options_.group->add_post_hook([weak = std::weak_ptr(timeline_)](const HookEvent& event) {
    if (const auto timeline = weak.lock()) timeline->operation_ended(event);
  });
}

std::string Reducer::timeline_json() const {
  const std::lock_guard lock(mutex_);
  return timeline_ == nullptr ? "{}" : timeline_->to_chrome_json(options_.group->rank());
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
  reductions_ = options_.static_graph && has_learnt_ ? 1 : 0;
  if (group == nullptr) return;  // this rank is out: its memory stays what it is
  options_.group = std::move(group);
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
  if (recorded_order_.size() != options_.parameters.size()) {
    throw AssertionError(fmt::format("{} of {} parameters have their place in the order of gradients",
                                     recorded_order_.size(), options_.parameters.size()));
  }
  std::vector<TensorInfo> infos;
  for (std::size_t i = 0; i < options_.parameters.size(); ++i) {
    const auto& each = options_.parameters[i];
    infos.push_back({.bytes = each.nbytes(),
                     .dtype = each.scalar_type(),
                     .device = each.device(),
                     .is_sparse = options_.expects_sparse[i]});
  }
  std::vector<std::size_t> limits{options_.first_cap, options_.bucket_cap};
  if (!options_.bucket_caps.empty()) limits = options_.bucket_caps;
  std::vector<AssignedBucket> assigned;
  if (options_.small_bucket_is_last) {
    std::reverse(recorded_order_.begin(), recorded_order_.end());
    assigned = assign_buckets(infos, limits, recorded_order_);
    std::reverse(assigned.begin(), assigned.end());
    for (auto& each : assigned) std::reverse(each.parameters.begin(), each.parameters.end());
  } else {
    assigned = assign_buckets(infos, limits, recorded_order_);
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
  for (const auto& theirs : options_.group->all_gather_bytes(mine)) {
    if (theirs.empty()) continue;
    make_buckets(buckets_from_bytes(theirs, options_.parameters.size()));
    break;
  }
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
  ++stamp_;
  for (auto& bucket : buckets_) bucket.reset();
  ready_order_.clear();
  if (has_learnt_) {
    hooks_left_ = hook_counts_;
    return;
  }
  unused_.clear();
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

// --- backward

void Reducer::on_gradient(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const bool is_static_first = options_.static_graph && !has_learnt_;
  if (at_the_end_ && !std::exchange(is_at_the_end_queued_, true)) {
    torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
      const auto reducer = weak.lock();
      if (reducer == nullptr) return;
      reducer->is_at_the_end_queued_ = false;
      reducer->at_the_end_();
    });
  }
  if (options_.find_unused_parameters || is_static_first) {
    if (options_.parameters[parameter].grad().defined()) local_used_[parameter] = 1;
  }
  if (!expects_gradients_) return;
  if (!times_.backward_start) times_.backward_start = ReducerTimes::Clock::now();
  if (is_static_first) {
    ++hook_counts_[parameter];
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
  if (!options_.static_graph || !expects_gradients_ || has_learnt_ || std::exchange(is_end_queued_, true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    const auto reducer = weak.lock();
    if (reducer == nullptr) return;
    const std::lock_guard held(reducer->mutex_);
    reducer->is_end_queued_ = false;
    reducer->has_learnt_ = true;
    for (std::size_t i = 0; i < reducer->hook_counts_.size(); ++i) {
      if (reducer->hook_counts_[i] == 0) reducer->unused_.push_back(i);
    }
    reducer->has_marked_unused_ = true;
    for (std::size_t i = 0; i < reducer->hook_counts_.size(); ++i) reducer->mark_ready(i);
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
  if (place.bucket == next_bucket_) advance_buckets();
}

void Reducer::fill(Bucket& bucket, std::size_t slot) {
  const auto parameter = bucket.parameters[slot];
  const auto& view = bucket.views[slot];
  auto& gradient = options_.parameters[parameter].mutable_grad();
  const bool scales_here = !hook_ && !bucket.scales;
  if (!gradient.defined()) {
    clear(view);
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
        "gradient of gradients) sees this rank's part alone");
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
  if (scales_here) {
    const at::NoGradGuard no_grad;
    auto out = view;
    at::mul_out(out, gradient.detach(), at::scalar_tensor(1.0 / divisor_, gradient.options()));
  } else {
    copy_gradient(view, gradient);
  }
  if (options_.gradient_as_bucket_view) gradient = view;
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
  const auto op = bucket.scales && divisor_ != 1 ? ReduceOp::premul_sum(1.0 / divisor_) : ReduceOp::sum();
  return options_.group->all_reduce(buffer_of(bucket.flat),
                                    {.op = op, .async_op = async_op, .stream = current_stream(bucket.flat)});
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
  bucket.is_launched = true;
  if (options_.skip_all_reduce_unused && !unused_.empty()) {
    const auto is_unused = [&](std::size_t each) { return std::binary_search(unused_.begin(), unused_.end(), each); };
    if (std::all_of(bucket.parameters.begin(), bucket.parameters.end(), is_unused)) {
      bucket.is_skipped = true;
      return;
    }
  }
  ++buckets_reduced_;
  if (hook_) {
    std::vector<at::Tensor> parameters;
    for (const auto each : bucket.parameters) parameters.push_back(options_.parameters[each]);
    GradBucket seen(index, buckets_.size(), bucket.flat, bucket.views, std::move(parameters));
    const at::NoGradGuard no_grad;
    bucket.future = hook_(seen);
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
  if (used_work_) {
    used_work_->wait();
    reduced_used_ = reduced_used_.cpu();
    return reduced_used_.data_ptr<std::int32_t>()[parameter] == 0;
  }
  // Static graph: every rank has the same set.
  return std::binary_search(unused_.begin(), unused_.end(), parameter);
}

void Reducer::queue_finalize() {
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto reducer = weak.lock()) {
      const std::lock_guard lock(reducer->mutex_);
      reducer->finalize();
    }
  });
}

void Reducer::finalize() {
  expects_gradients_ = false;
  for (std::size_t i = 0; i < buckets_.size(); ++i) finish(buckets_[i], i);
  requires_finalize_ = false;
  divisor_ = 0;
  for (const auto& each : std::exchange(futures_, {})) each.value();
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
  if (bucket.is_skipped) return;
  const at::NoGradGuard no_grad;
  at::Tensor result = bucket.flat;
  if (bucket.future) {
    result = bucket.future->value();
    if (!result.defined() || (!bucket.is_sparse && result.numel() != bucket.flat.numel())) {
      throw Error(fmt::format("the communication hook gave back {} for bucket {}, which has {} elements",
                              result.defined() ? fmt::format("{} elements", result.numel()) : "nothing", index,
                              bucket.flat.numel()));
    }
    bucket.future.reset();
  } else if (bucket.work) {
    bucket.work->wait();
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
  if (result.data_ptr() != bucket.flat.data_ptr()) bucket.flat.copy_(result.view({-1}));
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
      gradient.copy_(view);
    } else {
      gradient = view.clone();
    }
  }
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
      zeros.flat = at::sparse_coo_tensor(parameter.sizes(), parameter.options().layout(at::kSparse));
    } else {
      zeros = make_dense_bucket(*options_.group, real.parameters, options_.parameters, real.limit, false);
      zeros.scales = real.scales;
      zeros.flat.zero_();
    }
    launch(zeros, i);
    if (zeros.future) {
      zeros.future->value();
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

// --- errors and reports

std::string Reducer::name_of(std::size_t parameter) const {
  return parameter < options_.names.size() ? fmt::format("{} ({})", parameter, options_.names[parameter])
                                           : std::to_string(parameter);
}

void Reducer::check_finalized() {
  const std::lock_guard lock(mutex_);
  check_finalized_locked();
}

void Reducer::check_finalized_locked() {
  if (!requires_finalize_) return;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < ready_stamps_.size(); ++i) {
    if (ready_stamps_[i] != stamp_) missing.push_back(i);
  }
  if (missing.empty()) {
    throw Error(
        "the last backward failed while gradients were reduced: go on with update_process_group, and zero the "
        "gradients");
  }
  std::vector<std::string> names;
  const bool with_names = debug_level() != DebugLevel::off;
  for (const auto each : missing) names.push_back(with_names ? name_of(each) : std::to_string(each));
  const auto* const advice =
      options_.static_graph ? "the graph has changed, which static_graph promises that it does not"
      : options_.find_unused_parameters
          ? "some of forward's outputs were not used for the loss, or not in this backward"
          : "forward did not use them for the loss: set find_unused_parameters, or leave them out of the model";
  throw Error(fmt::format("the last backward did not finish: on rank {} parameters {} got no gradient: {}{}",
                          options_.group->rank(), fmt::join(names, ", "), advice,
                          with_names ? "" : " (COHORT_DEBUG=info adds their names)"));
}

void Reducer::refuse_ready_twice(std::size_t parameter) const {
  throw Error(fmt::format(
      "parameter {} got its gradient twice in one backward: it is used outside forward as well, or by several "
      "backwards inside one (activation checkpointing of the same layer){}. static_graph allows that, where the graph "
      "does not change",
      name_of(parameter),
      has_marked_unused_ && !unused_.empty()
          ? "; or forward's outputs did not show that it is used, and it was counted as unused"
          : ""));
}

std::vector<std::size_t> Reducer::bucket_sizes() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> sizes;
  for (const auto& each : buckets_) {
    sizes.push_back(each.is_sparse ? options_.parameters[each.parameters.front()].nbytes() : each.flat.nbytes());
  }
  return sizes;
}

std::vector<std::vector<std::size_t>> Reducer::bucket_parameters() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<std::size_t>> all;
  for (const auto& each : buckets_) all.push_back(each.parameters);
  return all;
}

std::vector<std::size_t> Reducer::bucket_limits() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> all;
  for (const auto& each : buckets_) all.push_back(each.limit);
  return all;
}

std::vector<std::size_t> Reducer::ready_order() const {
  const std::lock_guard lock(mutex_);
  return last_ready_order_;
}

std::size_t Reducer::unused_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto each : unused_) bytes += options_.parameters[each].nbytes();
  return bytes;
}

ReducerTimes Reducer::times() const {
  const std::lock_guard lock(mutex_);
  return last_times_;
}

}  // namespace cohort::ddp
