// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/bench.h"
#include "bench/flags.h"
#include "commands.h"
#include "common/usage.h"

namespace cohort::tool {

void add_bench_command(CLI::App& app) {
  auto* const command = app.add_subcommand("bench", "Measure collectives: nccl-tests' flags and table");
  const auto flags = bench::add_bench_flags(*command);
  command->callback([flags] {
    int code = 0;
    try {
      code = bench::run_bench(*flags);
    } catch (const ValueError& e) {
      fmt::print(stderr, "cohort bench: {}\n", e.what());
      code = usage_exit_code;
    }
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace cohort::tool
