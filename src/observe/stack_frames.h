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

/// Who called the caller of this, innermost first. Walks the stack, which takes about a microsecond, and allocates
/// nothing but the first time.
CallStack callers() noexcept;

struct Frame {
  std::string function;  ///< empty when its symbol is not exported
  std::string file;      ///< the program or library; source lines need a debugger
};

Frame describe_frame(const void* address);

}  // namespace cohort::observe
