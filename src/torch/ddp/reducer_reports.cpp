// SPDX-License-Identifier: BSD-3-Clause
//
// What the reducer says: of mistakes, and to whoever asks.
#include <cohort/debug_level.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "torch/ddp/reducer.h"

namespace cohort::ddp {

std::string Reducer::name_of(std::size_t parameter) const {
  return parameter < options_.names.size() ? fmt::format("{} ({})", parameter, options_.names[parameter])
                                           : std::to_string(parameter);
}

void Reducer::check_finalized() {
  const std::lock_guard lock(mutex_);
  check_finalized_locked();
}

void Reducer::check_finalized_locked() {
  const auto was_used = [](int count) { return count > 0; };
  if (options_.static_graph && !has_learnt_ && expects_gradients_ && !is_end_queued_ &&
      std::any_of(hook_counts_.begin(), hook_counts_.end(), was_used)) {
    throw Error(
        "the last backward was not reduced: with static_graph the first iteration's loss is computed from what forward "
        "gave back");
  }
  if (!requires_finalize_) return;
  if (!failure_.empty()) {
    throw Error(
        fmt::format("the last backward failed: {}. What it left in the gradients is this rank's own: zero them, "
                    "and go on with update_process_group",
                    failure_));
  }
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < ready_stamps_.size(); ++i) {
    if (ready_stamps_[i] != stamp_) missing.push_back(i);
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
