// SPDX-License-Identifier: BSD-3-Clause
//
// Which of a module's tensors are reduced, which are only broadcast, and which are left alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torch/ddp/parameters.h"

namespace cohort::ddp {

struct Selection {
  Parameters parameters{};           ///< those that require gradients; a tied weight has its first name
  std::vector<at::Tensor> frozen{};  ///< those that do not: only broadcast at construction
  bool has_sync_batch_norm = false;

  /// Both kinds.
  std::vector<at::Tensor> all() const {
    auto tensors = parameters.tensors;
    tensors.insert(tensors.end(), frozen.begin(), frozen.end());
    return tensors;
  }
};

Selection select(const ::torch::nn::Module& module, const std::set<std::string>& ignored);

/// Collected anew for each use, since modules may rebind their buffers.
std::vector<std::pair<std::string, at::Tensor>> select_buffers(const ::torch::nn::Module& module,
                                                               const std::set<std::string>& ignored);

}  // namespace cohort::ddp
