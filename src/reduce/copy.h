// SPDX-License-Identifier: BSD-3-Clause
//
// Copies between memory regions that do not overlap.
#pragma once

#include <cstddef>
#include <cstring>

namespace cohort::reduce {

inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);  // memcpy() must not get null pointers, even for 0 bytes
}

/// Copies with stores that bypass the caches, for a destination that is too large to be read from the caches later. The
/// stores are visible to every thread that synchronises with this one after the call.
void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace cohort::reduce
