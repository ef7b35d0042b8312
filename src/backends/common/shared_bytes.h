// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace cohort {

/// Zeroed memory of this process; at least one byte, so that it has an address of its own. Throws BackendError if there
/// is not enough memory.
inline std::shared_ptr<std::vector<std::byte>> shared_bytes(std::size_t bytes) {
  const auto machine =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  try {
    if (bytes <= machine) return std::make_shared<std::vector<std::byte>>(std::max<std::size_t>(1, bytes));
  } catch (const std::bad_alloc&) {
    // reported below
  }
  throw BackendError("memory of the group: no room for " + std::to_string(bytes) + " bytes");
}

}  // namespace cohort
