// SPDX-License-Identifier: BSD-3-Clause
//
// What stands before each line of a rank's output (--prefix-format).
#pragma once

#include <string>
#include <string_view>

namespace cohort::tool {

inline constexpr std::string_view default_prefix_format = "[rank {rank}] ";

struct PrefixValues {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string host{};
};

/// Replaces {rank}, {local_rank}, {node_rank} and {host}; {{ and }} are literal braces. ValueError for anything else in
/// braces, and for line breaks.
std::string format_prefix(std::string_view format, const PrefixValues& values);

/// The prefix in the colour of the rank, for a terminal. A prefix with escape sequences of its own stays as it is.
std::string colour_prefix(const std::string& prefix, int rank);

}  // namespace cohort::tool
