// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

namespace cohort::ddp {

/// Walks the graph behind `outputs` and says of each of `parameters` parameters whether its gradient accumulator is
/// part of it. Costs one visit for each node.
std::vector<bool> parameters_reached_from(std::span<const at::Tensor> outputs,
                                          const std::unordered_map<const void*, std::size_t>& accumulators,
                                          std::size_t parameters);

}  // namespace cohort::ddp
