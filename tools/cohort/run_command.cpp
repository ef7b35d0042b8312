// SPDX-License-Identifier: BSD-3-Clause
#include "commands.h"

namespace cohort::tool {

void add_run_command(CLI::App& app) {
  app.add_subcommand("run", "Start a program as several processes, on this host or as its share of several");
}

int run_command(const std::vector<std::string>&) {
  return 0;
}

}  // namespace cohort::tool
