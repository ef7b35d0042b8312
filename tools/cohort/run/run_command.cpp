// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "commands.h"
#include "common/guard.h"
#include "common/program.h"
#include "common/usage.h"
#include "run/flags.h"
#include "run/launch_plan.h"
#include "run/launcher.h"

namespace cohort::tool {

namespace {

/// Without them the first pipes would get the numbers 0 to 2 and be mistaken for standard streams.
void open_missing_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return;
  }
}

int run(const std::vector<std::string>& arguments) {
  const auto env = Env::read();
  LaunchPlan plan;
  try {
    const auto parsed = parse_run_flags(arguments, env);
    if (parsed.exit_code) return *parsed.exit_code;
    plan = make_plan(parsed.flags, env);
  } catch (const ValueError& e) {
    fmt::print(stderr, "cohort run: {}\n", e.what());
    return usage_exit_code;
  }
  const auto path = find_program(plan.program.front());
  open_missing_standard_streams();
  const Guard guard;
  return Launcher(plan, path, guard).run();
}

}  // namespace

void add_run_command(CLI::App& app) {
  app.add_subcommand("run", "Start a program as several processes, on this host or as its share of several");
}

int run_command(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const ProgramError& e) {
    fmt::print(stderr, "cohort run: {}\n", e.message);
    return e.exit_code;
  } catch (const Error& e) {
    fmt::print(stderr, "cohort run: {}\n", e.what());
    return 1;
  }
}

}  // namespace cohort::tool
