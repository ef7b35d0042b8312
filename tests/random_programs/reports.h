// SPDX-License-Identifier: BSD-3-Clause
//
// Reports as lines of text, which ranks write to a pipe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "random_programs/run.h"

namespace cohort::random_programs {

std::string to_line(std::uint64_t seed, const Report& report);
/// The reports among the lines; other lines are added to `rest`.
std::vector<std::pair<std::uint64_t, Report>> from_lines(const std::string& lines, std::string& rest);

}  // namespace cohort::random_programs
