// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace cohort::tool {

/// The program cannot be executed; `exit_code` is a shell's for that: 127 not found, 126 not executable.
struct ProgramError {
  std::string message;
  int exit_code;
};

/// The file that `program` means: itself if it has a slash, otherwise the first match in PATH. Throws ProgramError.
std::string find_program(const std::string& program);

}  // namespace cohort::tool
