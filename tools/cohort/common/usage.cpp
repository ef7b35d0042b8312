// SPDX-License-Identifier: BSD-3-Clause
#include "common/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/parse.h"

namespace cohort::tool {

namespace {

/// The subcommand that was called, or `app` itself.
const CLI::App& innermost(const CLI::App& app) {
  const auto called = app.get_subcommands();
  return called.empty() ? app : innermost(*called.front());
}

/// A template, so that functions can be asked for that older versions do not have.
template <class Formatter>
void keep_lines_of(Formatter& formatter) {
  if constexpr (requires { formatter.enable_footer_formatting(false); }) {
    formatter.enable_footer_formatting(false);
    formatter.enable_description_formatting(false);
  }
}

}  // namespace

void keep_lines_of_help(CLI::App& app) {
  keep_lines_of(*app.get_formatter());
}

std::string flag_suggestion(const CLI::App& app, std::string_view flag) {
  std::vector<std::string> names;
  for (const auto* const option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  const auto nearest = did_you_mean(flag.substr(0, flag.find('=')), {names.begin(), names.end()});
  return nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest);
}

int report(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::RuntimeError*>(&error) != nullptr) return error.get_exit_code();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
  const auto& called = innermost(app);
  std::string message = error.what();
  // What could not be understood is the reason, even where CLI11 noticed first that something else is missing.
  if (const auto extras = app.remaining(true); !extras.empty()) {
    const auto& extra = extras.front();
    message = extra.starts_with('-') ? fmt::format("unknown flag {}{}", extra, flag_suggestion(called, extra))
                                     : fmt::format("unexpected argument \"{}\"", extra);
  }
  const auto name = &called == &app ? std::string() : " " + called.get_name();
  fmt::print(stderr, "{}{}: {} (see {}{} --help)\n", app.get_name(), name, message, app.get_name(), name);
  return usage_exit_code;
}

int report_unknown_command(const CLI::App& app, std::string_view name) {
  std::vector<std::string> names;
  for (const auto* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  const auto nearest = did_you_mean(name, {names.begin(), names.end()});
  fmt::print(stderr, "{}: there is no command \"{}\"{} (the commands are {}; see {} --help)\n", app.get_name(), name,
             nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest), fmt::join(names, ", "),
             app.get_name());
  return usage_exit_code;
}

}  // namespace cohort::tool
