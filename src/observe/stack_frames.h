// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "observe/ring.h"

namespace cohort::observe {

struct CallStack {
  std::array<void*, kept_frames> addresses{};
  std::size_t count = 0;
};

/// The call stack above the caller of this function, innermost frame first. Takes about a microsecond to walk the
/// stack, and allocates only on the first call.
CallStack callers() noexcept;

struct Frame {
  std::string function;  ///< empty if its symbol is not exported
  std::string file;      ///< the program or library; source lines need a debugger
};

Frame describe_frame(const void* address);

}  // namespace cohort::observe
