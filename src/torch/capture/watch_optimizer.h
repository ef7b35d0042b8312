// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/capture_watch.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace cohort::recording {

/// Its own, if it is Watchable.
std::unique_ptr<WatchSnapshot> snapshot_of(const torch::optim::Optimizer& optimizer);

}  // namespace cohort::recording
