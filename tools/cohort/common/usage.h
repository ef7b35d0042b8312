// SPDX-License-Identifier: BSD-3-Clause
//
// What all subcommands do when they are called wrongly.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::tool {

/// Returned by every subcommand for an unknown command or flag and for a value that makes no sense, as by most
/// programs. 1 says that something went wrong later.
inline constexpr int usage_exit_code = 2;

/// Help shows descriptions and footers as they are written. CLI11 wraps them since 2.5. Subcommands that are added
/// later inherit it.
void keep_lines_of_help(CLI::App& app);

/// "; did you mean --json?", or nothing where no flag of `app` is near.
std::string flag_suggestion(const CLI::App& app, std::string_view flag);

/// Prints what CLI11 found, or the help that was asked for, and returns the exit code: 0 for help, the code that a
/// callback chose, and otherwise the one above.
int report(const CLI::App& app, const CLI::ParseError& error);

/// Prints that there is no such subcommand, and which one was probably meant.
int report_unknown_command(const CLI::App& app, std::string_view name);

}  // namespace cohort::tool
