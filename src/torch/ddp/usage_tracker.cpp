// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/usage_tracker.h"

#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/log.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "torch/dispatch/step_observer.h"
#include "torch/host_numbers.h"

namespace cohort::ddp {

namespace {

/// Walks the graph behind `outputs` and tells for each of `count` parameters whether its accumulator is part of it.
std::vector<bool> parameters_reached_from(std::span<const at::Tensor> outputs,
                                          const UsageTracker::Accumulators& accumulators, std::size_t count) {
  using torch::autograd::Node;
  std::vector<bool> is_reached(count);
  std::unordered_set<Node*> seen;
  std::vector<Node*> left;
  const auto visit = [&](Node* node) {
    if (node == nullptr || !seen.insert(node).second) return;
    if (const auto found = accumulators.find(node); found != accumulators.end()) is_reached[found->second] = true;
    left.push_back(node);
  };
  for (const auto& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      visit(torch::autograd::impl::gradient_edge(output).function.get());
    }
  }
  while (!left.empty()) {
    auto* const node = left.back();
    left.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return is_reached;
}

}  // namespace

UsageTracker::UsageTracker(const Parameters& parameters, UsageMode mode)
    : parameters_(parameters), mode_(mode), used_(parameters.size()), uses_(parameters.size()) {}

void UsageTracker::start_iteration(std::span<const at::Tensor> outputs, const Accumulators& accumulators) {
  if (has_learnt_) {
    uses_left_ = uses_;
    return;
  }
  unused_.clear();
  std::fill(uses_.begin(), uses_.end(), 0);
  if (mode_ != UsageMode::searched) return;
  refuse_to_record(CaptureRefusal::unsupported_call, "DistributedDataParallel with find_unused_parameters",
                   "which parameters are unused is found and exchanged by the host in each iteration",
                   {"Set static_graph, if the same parameters are unused in every iteration."});
  const auto is_reached = parameters_reached_from(outputs, accumulators, parameters_.size());
  for (std::size_t i = 0; i < is_reached.size(); ++i) {
    if (!is_reached[i]) unused_.push_back(i);
  }
  if (last_unused_ && *last_unused_ != unused_) looks_static_ = false;
  last_unused_ = unused_;
  if (unused_.empty() && !std::exchange(has_warned_, true)) {
    log(LogLevel::warn,
        "find_unused_parameters is on, but forward used all parameters: the search costs a walk over the graph in "
        "every iteration. Turn it off if your model always uses all of its parameters");
  }
}

void UsageTracker::mark_used(std::size_t parameter) {
  if (mode_ != UsageMode::searched && !is_learning()) return;
  if (parameters_.tensors[parameter].grad().defined()) used_[parameter] = 1;
}

bool UsageTracker::has_counted_uses() const {
  return std::any_of(uses_.begin(), uses_.end(), [](int count) { return count > 0; });
}

void UsageTracker::exchange_used(ProcessGroup& group, std::vector<std::int32_t> mine) {
  const IssueObserver unobserved({});  // no part of a captured step, which is recorded anew once this is known
  sum_numbers(group, mine);
  ranks_using_ = std::move(mine);
}

void UsageTracker::finish_learning(ProcessGroup& group) {
  if (ranks_using_.empty()) {
    exchange_used(group, used_);
  } else {
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i] != 0 && ranks_using_[i] == 0) {
        refuse_change(i, "is used on this rank, which had no input in the first iteration; no other rank used it");
      }
    }
  }
  has_learnt_ = true;
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    if (uses_[i] == 0) unused_.push_back(i);
  }
}

void UsageTracker::follow_learning(ProcessGroup& group) {
  if (mode_ != UsageMode::static_graph || !ranks_using_.empty()) return;
  exchange_used(group, std::vector<std::int32_t>(used_.size()));
}

void UsageTracker::check_is_reduced(std::size_t parameter) const {
  if (!has_learnt_ || ranks_using_[parameter] != 0 || !parameters_.tensors[parameter].grad().defined()) return;
  refuse_change(parameter, "got a gradient in no_sync, but no rank used it in the first iteration");
}

void UsageTracker::refuse_change(std::size_t parameter, const char* what) const {
  throw Error(fmt::format(
      "the training graph has changed: parameter {} {}, and static_graph promises that the graph stays the same",
      parameters_.describe(parameter), what));
}

bool UsageTracker::is_last_use(std::size_t parameter) {
  if (mode_ != UsageMode::static_graph) return true;
  if (uses_left_[parameter] == 0) {
    refuse_change(parameter, "got more gradients than in the first iteration");
  }
  return --uses_left_[parameter] == 0;
}

bool UsageTracker::is_unused(std::size_t parameter) const {
  return std::binary_search(unused_.begin(), unused_.end(), parameter);
}

bool UsageTracker::have_nothing_to_reduce(std::span<const std::size_t> parameters) const {
  return std::all_of(parameters.begin(), parameters.end(), [&](std::size_t each) {
    return mode_ == UsageMode::static_graph ? ranks_using_[each] == 0 : is_unused(each) && used_[each] == 0;
  });
}

/// A copy, so that `used_` can be cleared meanwhile. It is on the parameters' device, for which the group has a
/// backend.
at::Tensor UsageTracker::used_tensor(std::vector<std::int32_t> used) const {
  const auto count = static_cast<std::int64_t>(used.size());
  return at::from_blob(used.data(), {count}, at::kInt).to(parameters_.tensors.front().device(), at::kInt, false, true);
}

void UsageTracker::start_reduction(ProcessGroup& group) {
  if (mode_ != UsageMode::searched) return;
  reduced_used_ = used_tensor(used_);
  reduction_ = group.all_reduce(buffer_of(reduced_used_), {.async_op = true, .stream = current_stream(reduced_used_)});
}

void UsageTracker::reduce_nothing(ProcessGroup& group) const {
  if (mode_ != UsageMode::searched) return;
  const auto nothing = used_tensor(std::vector<std::int32_t>(used_.size()));
  group.all_reduce(buffer_of(nothing), {.stream = current_stream(nothing)});
}

bool UsageTracker::is_globally_unused(std::size_t parameter) {
  if (mode_ == UsageMode::static_graph) return ranks_using_[parameter] == 0;
  if (mode_ == UsageMode::all_used || used_[parameter] != 0) return false;
  if (reduction_) {
    reduction_->wait_on(current_stream(reduced_used_));
    reduction_.reset();
    reduced_used_ = reduced_used_.cpu();
  }
  return reduced_used_.data_ptr<std::int32_t>()[parameter] == 0;
}

void UsageTracker::finish_iteration() {
  if (reduction_) {
    reduction_->wait();
    reduction_.reset();
  }
  if (mode_ == UsageMode::searched) std::fill(used_.begin(), used_.end(), 0);
}

void UsageTracker::reset() {
  reduction_.reset();
  std::fill(used_.begin(), used_.end(), 0);
  has_learnt_ = false;
  ranks_using_.clear();
  unused_.clear();
}

std::size_t UsageTracker::unused_bytes() const {
  std::size_t bytes = 0;
  for (const auto each : unused_) bytes += parameters_.tensors[each].nbytes();
  return bytes;
}

}  // namespace cohort::ddp
