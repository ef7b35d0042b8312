// SPDX-License-Identifier: BSD-3-Clause
//
// How much groups check each other. COHORT_DEBUG (or TORCH_DISTRIBUTED_DEBUG) sets it: off (default), info, detail, in
// any case. A group keeps the level it was made with.
//
// ```text
//   off     what costs nothing: where an operation waits for a peer anyway, it sees whether that peer calls the same
//           operation, with the same reduction, dtype, size and root
//   info    the same, and groups say in the log how they were made
//   detail  before every collective all ranks compare operation, sequence number, dtypes and shapes, so that a mismatch
//           is an error on every rank at that very operation
// ```
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <string_view>

namespace cohort {

enum class DebugLevel : std::uint8_t { off, info, detail };

COHORT_API std::string_view to_string(DebugLevel level);
/// Anything else is a ValueError that lists the names.
COHORT_API DebugLevel parse_debug_level(std::string_view name);

COHORT_API DebugLevel debug_level();
COHORT_API void set_debug_level(DebugLevel level);
/// From the environment, now.
COHORT_API void set_debug_level_from_env();

}  // namespace cohort
