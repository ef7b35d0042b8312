// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "torch/compat/features.h"

namespace cohort {

/// What libtorch's allocators report how much memory is in use by: signed before libtorch 2.0.
using MemoryTotal = std::conditional_t<COHORT_TORCH_SINCE(2, 0), std::size_t, std::int64_t>;

}  // namespace cohort
