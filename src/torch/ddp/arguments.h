// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/ddp.h>

#include <optional>
#include <set>
#include <string>

#include "torch/ddp/selection.h"

namespace cohort::ddp {

/// Checks the arguments of DistributedDataParallel in the documented order, so that the first mistake is the one that
/// is reported, and fills in the options that depend on others. Returns the module's parameters.
Selection check_arguments(const ::torch::nn::Module* module, DdpOptions& options, std::optional<bool> sees_outputs);

/// The ValueError for a forward in whose result tensors are not found although some option needs them.
[[noreturn]] void refuse_hidden_outputs();

/// Names of tensors that the buckets and broadcasts leave alone.
std::set<std::string> ignored_names(const DdpOptions& options);

}  // namespace cohort::ddp
