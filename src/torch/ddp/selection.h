// SPDX-License-Identifier: BSD-3-Clause
//
// Which of a module's tensors are whose: reduced, broadcast only, left alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <set>
#include <string>
#include <vector>

namespace cohort::ddp {

struct Selection {
  /// Reduced: those that require gradients, each once (at its first name), in order of registration.
  std::vector<at::Tensor> parameters{};
  std::vector<std::string> names{};
  std::vector<bool> expects_sparse{};
  /// Broadcast at the beginning as well: those that do not.
  std::vector<at::Tensor> frozen{};
  bool has_sync_batch_norm = false;
};

Selection select(const ::torch::nn::Module& module, const std::set<std::string>& ignored);

/// Collected anew each time, since modules may rebind theirs.
std::vector<std::pair<std::string, at::Tensor>> select_buffers(const ::torch::nn::Module& module,
                                                               const std::set<std::string>& ignored);

}  // namespace cohort::ddp
