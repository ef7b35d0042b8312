// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/capture_watch.h>
#include <torch/nn/module.h>

#include <memory>

namespace cohort::recording {

/// `module` stays where it is, and alive if `keeps` does not keep it so. DDP wrappers in it are guarded as such, and so are
/// optimizers that step its parameters in backward.
std::unique_ptr<WatchSnapshot> snapshot_of(const torch::nn::Module& module,
                                           std::shared_ptr<const torch::nn::Module> keeps);

}  // namespace cohort::recording
