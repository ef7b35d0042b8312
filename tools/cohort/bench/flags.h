// SPDX-License-Identifier: BSD-3-Clause
//
// The command line of `cohort bench`: nccl-tests' flags, and what it takes to compare several systems.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/comparison.h"
#include "measure/command.h"
#include "measure/system.h"

namespace cohort::bench {

/// Instead of a backend: only the programs of --peers are measured.
inline constexpr std::string_view nobody = "none";

/// The flags as they were typed.
struct BenchFlags {
  std::vector<std::string> collectives{"all_reduce"};
  std::string min_bytes = "4";
  std::string max_bytes = "16M";
  std::string step_bytes{};
  std::size_t step_factor = 4;
  std::vector<std::string> sizes{};
  int iters = 20;
  int warmup_iters = 5;
  int agg_iters = 0;
  bool back_to_back = false;
  int run_cycles = 1;
  std::string reduction = "sum";
  std::string dtype = "f32";
  int root = 0;
  bool check = true;
  bool blocking = true;
  double timeout = 60;
  double limit_ms = 0;
  int ranks = 0;
  std::vector<std::string> backends{"shm"};
  std::string memory = "ordinary";
  std::string device = "auto";
  std::string placement = "both";
  int rounds = 1;
  std::string peers{};
  double drop_peers = 0;
  std::string json{};
  bool csv = false;
  std::string plot{};
  /// Internal: this process is a rank of a driver (measure/driver.h), or all of them.
  bool drive = false;
};

/// The checked flags. Making one throws a ValueError that names the flag and the reason.
struct BenchPlan {
  std::vector<measure::Operation> operations{};
  std::vector<std::size_t> sizes{};
  measure::Command command{};  ///< operation and bytes are to be filled in
  std::vector<measure::MemoryKind> memory{};
  ComparisonOptions::Placements placements = ComparisonOptions::Placements::both;
  std::chrono::milliseconds timeout{};
};
BenchPlan make_bench_plan(const BenchFlags& flags);

/// Returns the object that parsing fills in.
std::shared_ptr<BenchFlags> add_bench_flags(CLI::App& command);

}  // namespace cohort::bench
