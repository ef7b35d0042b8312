// SPDX-License-Identifier: BSD-3-Clause
//
// The texts of store errors, the same whichever store they come from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// "timed out waiting for the keys "a", "b" (and 98 more)"
std::string describe_missing(const std::vector<std::string>& keys);
std::string describe_not_a_number(std::string_view key);
std::string describe_empty_queue(std::string_view key);
std::string describe_pop_timeout(std::string_view key);

}  // namespace cohort
