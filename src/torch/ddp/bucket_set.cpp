// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/bucket_set.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/log.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "torch/ddp/gradient_copy.h"
#include "torch/written.h"

namespace cohort::ddp {

namespace {

bool can_scale_in_reduction(const ProcessGroup& group, const at::Tensor& flat) {
  return is_reducible(dtype_from(flat.scalar_type()), ReduceOp::premul_sum(1)) &&
         group.capabilities(device_from(flat.device())).premul_sum;
}

std::vector<std::string> gather_orders(ProcessGroup& group, const std::string& mine) {
  const IssueObserver unobserved({});  // no part of a captured step: the reducer's guards see that buckets are rebuilt
  return group.all_gather_bytes(mine);
}

}  // namespace

// --- assigning and rebuilding

BucketSet::BucketSet(const Parameters& parameters, BucketOptions options, ProcessGroup& group)
    : parameters_(parameters), options_(std::move(options)), places_(parameters.size()), is_filled_(parameters.size()) {
  auto assigned = assign_buckets(infos(), options_.initial_limits);
  // The last layers get their gradients first.
  std::reverse(assigned.begin(), assigned.end());
  make(std::move(assigned), group);
}

std::vector<TensorInfo> BucketSet::infos() const {
  std::vector<TensorInfo> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& each = parameters_.tensors[i];
    all.push_back({.bytes = each.nbytes(),
                   .dtype = each.scalar_type(),
                   .device = each.device(),
                   .is_sparse = parameters_.expects_sparse[i]});
  }
  return all;
}

void BucketSet::make(std::vector<AssignedBucket> assigned, ProcessGroup& group) {
  ++builds_;
  // The old buckets are freed first: two sets of them would double the memory. Gradients that lie in one keep it alive.
  buckets_.clear();
  for (auto& each : assigned) {
    if (parameters_.expects_sparse[each.parameters.front()]) {
      buckets_.push_back({.parameters = std::move(each.parameters), .is_sparse = true});
    } else {
      auto& bucket = buckets_.emplace_back(make_dense_bucket(group, std::move(each.parameters), parameters_.tensors,
                                                             each.limit, options_.may_use_group_memory));
      bucket.scales_in_reduction = can_scale_in_reduction(group, bucket.flat);
      if (options_.gradient_as_bucket_view) adopt_gradients(bucket);
    }
    const auto& bucket = buckets_.back();
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      places_[bucket.parameters[slot]] = {.bucket = buckets_.size() - 1, .slot = slot};
    }
  }
}

/// Moves gradients that exist already into the bucket.
void BucketSet::adopt_gradients(const Bucket& bucket) const {
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    auto& gradient = parameters_.tensors[bucket.parameters[slot]].mutable_grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided) continue;
    copy_gradient(bucket.views[slot], gradient);
    gradient = bucket.views[slot];
  }
}

std::vector<AssignedBucket> BucketSet::assign_in_recorded_order() const {
  if (!options_.small_bucket_is_last) return assign_buckets(infos(), options_.rebuilt_limits, order_);
  const std::vector<std::size_t> backwards(order_.rbegin(), order_.rend());
  auto assigned = assign_buckets(infos(), options_.rebuilt_limits, backwards);
  std::reverse(assigned.begin(), assigned.end());
  for (auto& each : assigned) std::reverse(each.parameters.begin(), each.parameters.end());
  return assigned;
}

void BucketSet::rebuild(ProcessGroup& group) {
  // In a join a rank may have had no gradients so far.
  const auto all = gather_orders(group, has_order() ? to_bytes(assign_in_recorded_order()) : "");
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& each) { return !each.empty(); });
  if (first == all.end()) throw AssertionError("no rank has seen the order of gradients");
  make(buckets_from_bytes(*first, parameters_.size()), group);
  order_.clear();
  has_rebuilt_ = true;
}

void BucketSet::move_to(ProcessGroup& group) {
  std::vector<AssignedBucket> same;
  for (auto& bucket : buckets_) same.push_back({.parameters = std::move(bucket.parameters), .limit = bucket.limit});
  make(std::move(same), group);
}

void BucketSet::forget_order() {
  order_.clear();
  has_rebuilt_ = false;
}

Bucket BucketSet::make_zeros(std::size_t index, ProcessGroup& group) const {
  const auto& real = buckets_[index];
  if (!real.is_sparse) {
    auto zeros = make_dense_bucket(group, real.parameters, parameters_.tensors, real.limit, false);
    zeros.scales_in_reduction = real.scales_in_reduction;
    zeros.flat.zero_();
    zeros.stream = current_stream(zeros.flat);
    return zeros;
  }
  const auto& parameter = parameters_.tensors[real.parameters.front()];
  // Laid out as embeddings do: one sparse dimension, dense rows, and here no rows at all.
  auto no_rows = parameter.sizes().vec();
  no_rows[0] = 0;
  Bucket zeros{.parameters = real.parameters, .is_sparse = true};
  zeros.flat = at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                                     at::empty(no_rows, parameter.options()), parameter.sizes());
  return zeros;
}

// --- filling

void BucketSet::clear() {
  for (auto& bucket : buckets_) bucket.reset();
  is_filled_.assign(is_filled_.size(), false);
  has_graph_ = false;
}

std::vector<std::size_t> BucketSet::unfilled() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < is_filled_.size(); ++i) {
    if (!is_filled_[i]) missing.push_back(i);
  }
  return missing;
}

std::size_t BucketSet::fill(std::size_t parameter, double divisor, const UsageTracker& usage) {
  is_filled_[parameter] = true;
  const auto place = places_[parameter];
  auto& bucket = buckets_[place.bucket];
  if (bucket.is_sparse) {
    fill_sparse(bucket, divisor);
  } else {
    // The bucket is this gradient's memory, so the old value is lost: it has to come back if no rank used the
    // parameter.
    const bool keeps_old = options_.gradient_as_bucket_view && usage.is_unused(parameter);
    fill_dense(bucket, place.slot, divisor, keeps_old);
  }
  if (--bucket.pending == 0) {
    // Here, on the thread and stream of the bucket's last gradient: whoever launches it may be on those of another
    // device.
    if (options_.batches_copies && !bucket.is_sparse) copy_together(bucket, divisor);
    bucket.stream = current_stream(parameters_.tensors[parameter]);
  }
  return place.bucket;
}

void BucketSet::fill_dense(Bucket& bucket, std::size_t slot, double divisor, bool keeps_old) {
  const auto parameter = bucket.parameters[slot];
  const auto& view = bucket.views[slot];
  auto& gradient = parameters_.tensors[parameter].mutable_grad();
  if (!gradient.defined()) {
    clear_gradient(view);
    return;
  }
  if (gradient.layout() != at::kStrided) {
    throw Error(fmt::format("parameter {} has a sparse gradient where a dense one was expected",
                            parameters_.describe(parameter)));
  }
  if (gradient.scalar_type() != bucket.flat.scalar_type()) {
    throw Error(fmt::format("the gradient of parameter {} is {}, but its bucket is {}", parameters_.describe(parameter),
                            c10::toString(gradient.scalar_type()), c10::toString(bucket.flat.scalar_type())));
  }
  if (gradient.requires_grad()) has_graph_ = true;
  if (gradient.requires_grad() && created_graphs_++ % 1000 == 0) {
    log(LogLevel::warn,
        "backward with create_graph: gradients' values are averaged over the ranks, but what is computed from them (a "
        "gradient of gradients) sees this rank's part alone, and needs gradient_as_bucket_view = false");
  }
  const at::NoGradGuard no_grad;
  if (keeps_old) bucket.kept.emplace_back(slot, gradient.clone());
  const bool divides = divisor != 1 && !bucket.scales_in_reduction && !options_.batches_copies;
  if (is_same_memory(gradient, view)) {
    if (divides) view.div_(divisor);
    return;
  }
  if (gradient.strides() != view.strides() && gradient.numel() > 1 && !std::exchange(has_warned_strides_, true)) {
    log(LogLevel::warn,
        fmt::format("the gradient of parameter {} has strides ({}), but the parameter has ({}): copying it is slower, "
                    "its values are the same",
                    parameters_.describe(parameter), fmt::join(gradient.strides(), ", "),
                    fmt::join(view.strides(), ", ")));
  }
  if (options_.batches_copies) {
    bucket.uncopied.push_back(slot);
    return;
  }
  if (divides) {
    auto out = view;
    at::mul_out(out, gradient.detach(), at::scalar_tensor(1.0 / divisor, gradient.options()));
  } else {
    copy_gradient(view, gradient);
  }
  if (options_.gradient_as_bucket_view) gradient = view;
}

/// Does the copies and the division that fill_dense() left out.
void BucketSet::copy_together(Bucket& bucket, double divisor) const {
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> gradients;
  for (const auto slot : bucket.uncopied) {
    views.push_back(bucket.views[slot]);
    gradients.push_back(parameters_.tensors[bucket.parameters[slot]].grad());
  }
  copy_gradients(views, gradients);
  if (divisor != 1 && !bucket.scales_in_reduction) {
    const at::NoGradGuard no_grad;
    bucket.flat.div_(divisor);
  }
  if (options_.gradient_as_bucket_view) {
    for (const auto slot : bucket.uncopied) {
      parameters_.tensors[bucket.parameters[slot]].mutable_grad() = bucket.views[slot];
    }
  }
  bucket.uncopied.clear();
}

void BucketSet::fill_sparse(Bucket& bucket, double divisor) const {
  const auto parameter = bucket.parameters.front();
  const auto& gradient = parameters_.tensors[parameter].grad();
  if (!gradient.defined()) {
    throw Error(
        fmt::format("parameter {} was not used: a parameter with sparse gradients has to be used in every iteration",
                    parameters_.describe(parameter)));
  }
  if (!gradient.is_sparse()) {
    throw Error(fmt::format("parameter {} has a dense gradient where a sparse one was expected",
                            parameters_.describe(parameter)));
  }
  const at::NoGradGuard no_grad;
  bucket.flat = divisor == 1 ? gradient.detach() : gradient.detach().div(divisor);
}

// --- handing out

void BucketSet::restore_unused(Bucket& bucket, UsageTracker& usage) {
  for (const auto& [slot, gradient] : std::exchange(bucket.kept, {})) {
    if (bucket.is_skipped || usage.is_globally_unused(bucket.parameters[slot])) {
      copy_gradient(bucket.views[slot], gradient);
    }
  }
}

void BucketSet::hand_out(Bucket& bucket, const at::Tensor& reduced, UsageTracker& usage) const {
  const at::NoGradGuard no_grad;
  if (bucket.is_sparse) {
    parameters_.tensors[bucket.parameters.front()].mutable_grad() = reduced;
    return;
  }
  if (reduced.data_ptr() != bucket.flat.data_ptr()) bucket.flat.copy_(reduced.reshape({-1}));
  std::vector<at::Tensor> copied_to;
  std::vector<at::Tensor> copied_from;
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    const auto parameter = bucket.parameters[slot];
    auto& gradient = parameters_.tensors[parameter].mutable_grad();
    const auto& view = bucket.views[slot];
    mark_written(view);  // by the reduction of the bucket, whose version is another one
    if (gradient.defined() && is_same_memory(gradient, view)) {
      if (!gradient.is_same(view)) mark_written(gradient);
      continue;
    }
    if (usage.is_globally_unused(parameter)) continue;
    if (options_.gradient_as_bucket_view) {
      if (gradient.defined()) {
        throw Error(
            fmt::format("the gradient of parameter {} was replaced during backward, but with gradient_as_bucket_view "
                        "it has to stay in its bucket",
                        parameters_.describe(parameter)));
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
  restore_unused(bucket, usage);
}

}  // namespace cohort::ddp
