// SPDX-License-Identifier: BSD-3-Clause
//
// Copies between memory that does not overlap.
#pragma once

#include <cstddef>
#include <cstring>

namespace cohort::reduce {

inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);  // no bytes may come with null pointers
}

/// With stores that bypass the caches, for a destination too large to be read from them later. They are visible to
/// whoever synchronises with this thread after the call.
void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace cohort::reduce
