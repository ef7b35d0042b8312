// SPDX-License-Identifier: BSD-3-Clause
#include "common/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/environment.h"
#include "core/parse.h"

namespace cohort::tool {

namespace {

/// The errno that says why this cannot be executed; 0 if it can.
int why_not_executable(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return ENOENT;
  if (std::filesystem::is_directory(path, error)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

ProgramError not_executable(const std::string& path, int reason) {
  auto message = fmt::format("cannot execute {}: {}", path, std::generic_category().message(reason));
  if (reason == EACCES) message += fmt::format("; is it a program? then: chmod +x {}", path);
  return {message, reason == ENOENT ? 127 : 126};
}

}  // namespace

std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    const int reason = why_not_executable(program);
    if (reason != 0) throw not_executable(program, reason);
    return program;
  }
  const auto variables = own_environment();
  const auto path = variables.find("PATH");
  int reason = ENOENT;
  std::string found;
  for (const auto folder : split(path == variables.end() ? "/usr/bin:/bin" : std::string_view(path->second), ':')) {
    auto candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, program);
    const int why = why_not_executable(candidate);
    if (why == 0) return candidate;
    if (why == EACCES) {
      reason = why;
      found = candidate;
    }
  }
  if (reason == EACCES) throw not_executable(found, reason);
  const bool is_here = why_not_executable("./" + program) == 0;
  throw ProgramError{fmt::format("program \"{}\" not found in PATH{}", program,
                                 is_here ? fmt::format("; the one in this folder is ./{}", program) : ""),
                     127};
}

}  // namespace cohort::tool
