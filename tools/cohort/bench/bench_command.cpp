// SPDX-License-Identifier: BSD-3-Clause
#include <CLI/CLI.hpp>

#include "bench/bench.h"
#include "bench/flags.h"
#include "commands.h"

namespace cohort::tool {

void add_bench_command(CLI::App& app) {
  auto* const command = app.add_subcommand("bench", "Measure collectives: nccl-tests' flags and table");
  const auto flags = bench::add_bench_flags(*command);
  command->callback([flags] {
    if (const int code = bench::run_bench(*flags); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace cohort::tool
