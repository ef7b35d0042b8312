// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/secret.h>

#include <fmt/format.h>

#include <memory>

#include "commands.h"

namespace cohort::tool {

void add_secret_command(CLI::App& app) {
  auto* const command =
      app.add_subcommand("secret", "Make the secret with which the processes of a job authenticate each other");
  const auto file = std::make_shared<std::string>();
  command->add_option("FILE", *file, "the file to write; it must not exist yet")->required();
  command->callback([file] {
    Secret::generate().write_new(*file);
    fmt::print(
        "wrote {0} (only you can read it)\n"
        "Copy it to each host of the job, keep its mode at 600, and set there:\n"
        "  export COHORT_SECRET_FILE={0}\n",
        *file);
  });
}

}  // namespace cohort::tool
