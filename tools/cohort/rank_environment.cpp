// SPDX-License-Identifier: BSD-3-Clause
#include "rank_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

#include "core/parse.h"

namespace cohort::tool {

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Variables own_environment() {
  Variables variables;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

/// errno of why this cannot be executed; 0 if it can.
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

std::vector<std::string> RankEnvironment::of(int local_rank) const {
  auto variables = own_environment();
  const auto rank = fmt::to_string(world.first_rank + local_rank);
  const auto size = fmt::to_string(world.size);
  variables["RANK"] = rank;
  variables["WORLD_SIZE"] = size;
  variables["LOCAL_RANK"] = fmt::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = fmt::to_string(plan.local_size);
  variables["GROUP_RANK"] = fmt::to_string(plan.node_rank);
  variables["GROUP_WORLD_SIZE"] = fmt::to_string(plan.nodes);
  variables["ROLE_RANK"] = rank;
  variables["ROLE_WORLD_SIZE"] = size;
  variables["ROLE_NAME"] = plan.role;
  variables["MASTER_ADDR"] = plan.master_addr;
  variables["MASTER_PORT"] = fmt::to_string(world.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = fmt::to_string(attempt);
  variables["TORCHELASTIC_MAX_RESTARTS"] = fmt::to_string(plan.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = run_id;
  variables["COHORT_RUN_ID"] = run_id;
  variables["COHORT_STORE"] = store;
  if (secret_file.empty()) {
    variables.erase("COHORT_SECRET_FILE");
  } else {
    variables["COHORT_SECRET_FILE"] = secret_file;
  }
  variables.erase(
      "TORCHELASTIC_USE_AGENT_STORE");  // under a torchrun outside: its store is not at MASTER_PORT any more
  if (plan.env.text("OMP_NUM_THREADS").empty()) variables["OMP_NUM_THREADS"] = fmt::to_string(threads);

  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

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
