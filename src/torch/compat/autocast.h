// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/autocast_mode.h>

#include "torch/compat/features.h"

namespace cohort {

/// Whether a thread casts for a type of device, and to which type of element.
struct Autocast {
  bool is_enabled = false;
  at::ScalarType dtype = at::kFloat;
  bool operator==(const Autocast& other) const {
    return is_enabled == other.is_enabled && (!is_enabled || dtype == other.dtype);
  }
};

/// That of this thread, for the CPU or CUDA.
inline Autocast autocast_of(c10::DeviceType type) {
#if COHORT_TORCH_HAS_AUTOCAST_BY_DEVICE
  return {.is_enabled = at::autocast::is_autocast_enabled(type), .dtype = at::autocast::get_autocast_dtype(type)};
#else
  if (type == c10::DeviceType::CPU) {
    return {.is_enabled = at::autocast::is_cpu_enabled(), .dtype = at::autocast::get_autocast_cpu_dtype()};
  }
  return {.is_enabled = at::autocast::is_enabled(), .dtype = at::autocast::get_autocast_gpu_dtype()};
#endif
}

/// Turns it on or off for the CPU.
inline void enable_autocast_on_cpu(bool is_enabled) {
#if COHORT_TORCH_HAS_AUTOCAST_BY_DEVICE
  at::autocast::set_autocast_enabled(at::kCPU, is_enabled);
#else
  at::autocast::set_cpu_enabled(is_enabled);
#endif
}

}  // namespace cohort
