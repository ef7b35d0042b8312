// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/version.h>

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string_view>
#include <utility>

#include "commands.h"
#include "common/terminal_text.h"
#include "common/usage.h"

namespace {

int run_main(int argc, char** argv) {
  using namespace cohort::tool;
  if (argc > 1 && std::string_view(argv[1]) == "run") return run_command({argv + 2, argv + argc});

  CLI::App app("Cohort: distributed training for C++", "cohort");
  keep_lines_of_help(app);
  app.set_version_flag("--version", std::string(cohort::version().text));
  app.require_subcommand(1);
  app.footer("All commands return 2 if they are called wrongly, and 1 if something goes wrong later.");
  add_run_command(app);
  add_secret_command(app);
  add_bench_command(app);
  add_doctor_command(app);
  add_plan_command(app);
  add_trace_command(app);
  if (argc > 1 && argv[1][0] != '-') {
    const auto is_named = [name = argv[1]](const CLI::App* command) { return command->check_name(name); };
    if (std::as_const(app).get_subcommands(is_named).empty()) return report_unknown_command(app, argv[1]);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return report(app, e);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_main(argc, argv);
  } catch (const std::exception& e) {
    // The text may quote the name of a file, which may contain anything.
    fmt::print(stderr, "cohort: {}\n", cohort::tool::shown_on(STDERR_FILENO, e.what()));
    return 1;
  }
}
