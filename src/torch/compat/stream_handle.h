// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Stream.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include "torch/compat/features.h"

namespace cohort {

/// The device library's own handle, a cudaStream_t for example. NotSupportedError before libtorch 2.11.
inline void* handle_of(const c10::Stream& stream) {
#if COHORT_TORCH_HAS_STREAM_HANDLES
  return stream.native_handle();
#else
  throw NotSupportedError(fmt::format("tensors on {} need libtorch 2.11 or newer", stream.device().str()));
#endif
}

}  // namespace cohort
