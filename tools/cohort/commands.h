// SPDX-License-Identifier: BSD-3-Clause
//
// Each subcommand adds itself to the command line. Its callback throws CLI::RuntimeError to return another exit code
// than 0, and cohort::Error for what main() shall report.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

namespace cohort::tool {

void add_bench_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
/// Only says that there is such a command: what stands behind the program's name is not for CLI11, so main() hands the
/// arguments of `cohort run` to run_command() as they are.
void add_run_command(CLI::App& app);
void add_secret_command(CLI::App& app);
void add_trace_command(CLI::App& app);

/// Returns the exit code.
int run_command(const std::vector<std::string>& arguments);

}  // namespace cohort::tool
