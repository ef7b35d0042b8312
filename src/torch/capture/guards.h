// SPDX-License-Identifier: BSD-3-Clause
//
// What must be as it was for a recording to be replayed: the call's arguments (for tensors dtype, device, sizes, strides,
// requires_grad and, if they are distributed, mesh and placements; other arguments by value, groups by identity), what the
// step watches, and the modes of the thread (grad mode, inference mode, autocast, default dtype). The groups of recorded
// collectives must not have been aborted or shut down.
#pragma once

#include <cohort/torch/capture.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cohort::recording {

class Guards {
 public:
  /// How things are now, before the step runs.
  Guards(const detail::CapturedCall& call, const WatchList& watch);

  /// A group on which the recording has collectives.
  void add_group(const ProcessGroupPtr& group);

  /// The first guard that fails, in words, or nullopt. Under 20 us for a thousand parameters.
  std::optional<std::string> failure(const detail::CapturedCall& call) const;

  const std::vector<std::unique_ptr<WatchSnapshot>>& watched() const noexcept { return watched_; }

 private:
  // ...
  std::vector<std::unique_ptr<WatchSnapshot>> watched_;
};

}  // namespace cohort::recording
