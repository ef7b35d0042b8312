// SPDX-License-Identifier: BSD-3-Clause
#include "model/chooser.h"

#include <algorithm>

namespace cohort::model {

std::optional<std::size_t> ExhaustiveChooser::choose(std::size_t count) {
  if (depth_ == path_.size()) path_.push_back({.chosen = 0, .count = count});
  const auto& branch = path_[depth_];
  if (branch.count != count) return std::nullopt;
  ++depth_;
  return branch.chosen;
}

bool ExhaustiveChooser::advance() {
  depth_ = 0;
  while (!path_.empty() && path_.back().chosen + 1 == path_.back().count) path_.pop_back();
  if (path_.empty()) return false;
  ++path_.back().chosen;
  return true;
}

PriorityChooser::PriorityChooser(std::uint64_t seed, std::size_t length) : UniformChooser(seed) {
  for (std::size_t i = 0; i < priorities_.size(); ++i) priorities_[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = priorities_.size(); i > 1; --i) std::swap(priorities_[i - 1], priorities_[*choose(i)]);
  for (auto& change : changes_) change = *choose(std::max<std::size_t>(length, 1));
}

std::optional<std::size_t> PriorityChooser::choose_thread(std::span<const ThreadId> candidates) {
  const auto highest = [&] {
    return std::max_element(candidates.begin(), candidates.end(),
                            [&](ThreadId a, ThreadId b) { return priorities_[a] < priorities_[b]; });
  };
  if (std::find(changes_.begin(), changes_.end(), step_++) != changes_.end()) priorities_[*highest()] = --lowest_;
  return static_cast<std::size_t>(highest() - candidates.begin());
}

std::optional<std::size_t> ReplayChooser::choose(std::size_t count) {
  if (next_ == decisions_.size() || decisions_[next_] >= count) return std::nullopt;
  return decisions_[next_++];
}

}  // namespace cohort::model
