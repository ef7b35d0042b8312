// SPDX-License-Identifier: BSD-3-Clause
//
// The environment that a child process is given: this process's own, with some variables replaced.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace cohort::tool {

using Variables = std::map<std::string, std::string, std::less<>>;

Variables own_environment();

/// NAME=value, for exec.
std::vector<std::string> environment_entries(const Variables& variables);

}  // namespace cohort::tool
