// SPDX-License-Identifier: BSD-3-Clause
//
// How thoroughly groups check that their ranks agree. COHORT_DEBUG (or TORCH_DISTRIBUTED_DEBUG) sets the level: off
// (default), info or detail, in upper or lower case. A group keeps the level that was set when it was made.
//
// ```text
//   off     checks that cost nothing: an operation that waits for a peer anyway checks whether that peer calls the
//           same operation, with the same reduction, dtype, size and root
//   info    the same, and groups log how they were made
//   detail  before every collective, all ranks compare operation, sequence number, dtypes and shapes, so that every
//           rank gets an error at the operation that does not match
// ```
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <string_view>

namespace cohort {

enum class DebugLevel : std::uint8_t { off, info, detail };

COHORT_API std::string_view to_string(DebugLevel level);
/// Throws a ValueError that lists the names if `name` is none of them.
COHORT_API DebugLevel parse_debug_level(std::string_view name);

COHORT_API DebugLevel debug_level();
COHORT_API void set_debug_level(DebugLevel level);
/// Reads the environment again.
COHORT_API void set_debug_level_from_env();

}  // namespace cohort
