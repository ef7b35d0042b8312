// SPDX-License-Identifier: BSD-3-Clause
//
// Keys in the job's store from which a launcher can tell how far the ranks are.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace cohort {

/// The prefix of all keys between two restarts of the job.
inline std::string attempt_prefix(int restart_count) {
  return fmt::format("attempt{}", restart_count);
}

/// How often the rank has begun a rendezvous of this name.
inline std::string begun_key(std::string_view name, int rank) {
  return fmt::format("rendezvous/{}/begun/{}", name, rank);
}

/// There once the rank has begun a rendezvous that has a name.
inline std::string begun_named_key(int rank) {
  return fmt::format("rendezvous begun/{}", rank);
}

/// There once the ranks have made a group, or have met in rendezvous() for another purpose.
inline constexpr auto group_made_key = "group made";

}  // namespace cohort
