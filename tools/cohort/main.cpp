// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/version.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string_view>

#include "commands.h"

namespace {

int run_main(int argc, char** argv) {
  using namespace cohort::tool;
  if (argc > 1 && std::string_view(argv[1]) == "run") return run_command({argv + 2, argv + argc});

  CLI::App app("Cohort: distributed training for C++", "cohort");
  app.set_version_flag("--version", std::string(cohort::version().text));
  app.require_subcommand(1);
  add_run_command(app);
  add_secret_command(app);
  add_bench_command(app);
  add_doctor_command(app);
  add_trace_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_main(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "cohort: {}\n", e.what());
    return 1;
  }
}
