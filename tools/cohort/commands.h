// SPDX-License-Identifier: BSD-3-Clause
//
// Each subcommand adds itself to the command line. Its callback throws CLI::RuntimeError to return an exit code other
// than 0, and cohort::Error for errors that main() reports.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

namespace cohort::tool {

void add_bench_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_plan_command(CLI::App& app);
/// For --help only: CLI11 must not parse what follows the program's name, so main() passes the arguments of `cohort
/// run` to run_command() unparsed.
void add_run_command(CLI::App& app);
void add_secret_command(CLI::App& app);
void add_trace_command(CLI::App& app);

/// Returns the exit code.
int run_command(const std::vector<std::string>& arguments);

}  // namespace cohort::tool
