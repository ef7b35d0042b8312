// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "random_programs/program.h"

namespace cohort::random_programs {

/// The program of this seed. Steps and size are the same for every backend; only how ranks are arranged depends on it.
Program generate(std::uint64_t seed, const std::string& backend);

}  // namespace cohort::random_programs
