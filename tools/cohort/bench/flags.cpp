// SPDX-License-Identifier: BSD-3-Clause
#include "bench/flags.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "measure/sizes.h"

namespace cohort::bench {

namespace {

constexpr auto footer = R"(Examples:
  cohort bench                                           all_reduce over shared memory, a rank for each core
  cohort bench all_gather,broadcast -b 8 -e 128M -f 2    sizes and flags as in nccl-tests
  cohort bench --ranks 4 --backends shm,thread --memory both --plot result.svg
  cohort bench --ranks 2 --peers auto --rounds 9 --json result.json
                                                         in turn with Open MPI, MPICH and Gloo, as far as they are here
  cohort run -n 8 cohort bench -e 64M                    under a launcher: its ranks, its environment

A size is that of the whole array: of n ranks each contributes an n-th of it to an all_gather. A time is that of the slowest
rank; short operations are timed several at a time; arrays of 16 KiB and more are rewritten between operations, as a program
would, unless -m or -z 0 asks for operations back to back. busbw is what the slowest link carries: time and algbw change with the
number of ranks, busbw is to be compared with what the hardware can do.)";

void add_nccl_flags(CLI::App& app, BenchFlags& flags) {
  const auto sizes = "Sizes";
  app.add_option("-b,--minbytes", flags.min_bytes, "smallest size; K, M and G behind a number mean powers of 1024")
      ->capture_default_str()
      ->group(sizes);
  app.add_option("-e,--maxbytes", flags.max_bytes, "largest size")->capture_default_str()->group(sizes);
  app.add_option("-f,--stepfactor", flags.step_factor, "multiply by this from size to size")
      ->capture_default_str()
      ->group(sizes);
  app.add_option("-i,--stepbytes", flags.step_bytes, "or add this many bytes from size to size")->group(sizes);
  app.add_option("--sizes", flags.sizes, "or these sizes, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(sizes);

  const auto what = "What is measured";
  app.add_option("collective,--collective", flags.collectives,
                 "all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, barrier, send_recv, or all")
      ->delimiter(',')
      ->capture_default_str()
      ->group(what);
  app.add_option("-o,--op", flags.reduction, "sum, prod, min, max or avg")->capture_default_str()->group(what);
  app.add_option("-d,--datatype", flags.dtype, "f32, f16, bf16, f64, i8, u8, i16, i32, i64, ...")
      ->capture_default_str()
      ->group(what);
  app.add_option("-r,--root", flags.root, "root of broadcast and reduce")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(what);
  app.add_option("--placement", flags.placement, "of operations that have both: in (place), out (of place) or both")
      ->check(CLI::IsMember({"in", "out", "both"}))
      ->capture_default_str()
      ->group(what);
  app.add_option("-z,--blocking", flags.blocking, "1: each operation is waited for; 0: a sample's are issued first")
      ->capture_default_str()
      ->group(what);

  const auto how = "How";
  app.add_option("-n,--iters", flags.iters, "samples of each size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(how);
  app.add_option("-w,--warmup_iters,--warmup-iters", flags.warmup_iters, "operations before that")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(how);
  app.add_option("-m,--agg_iters,--agg-iters", flags.agg_iters,
                 "operations in a sample; 0: as many as the clock needs, one where they are long")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(how);
  app.add_option("-c,--check", flags.check, "1: check results against a serial reference; 0: do not")
      ->capture_default_str()
      ->group(how);
  app.add_option("-N,--run_cycles,--run-cycles", flags.run_cycles, "the whole table this often")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(how);
  app.add_option("-T,--timeout", flags.timeout, "seconds that anything may take before it counts as hung")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(how);
  app.add_option("--limit-ms", flags.limit_ms,
                 "take fewer samples (but three) when a measurement lasts longer than this; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(how);
}

void add_comparing_flags(CLI::App& app, BenchFlags& flags) {
  const auto who = "Who takes part";
  app.add_option("--ranks", flags.ranks, "ranks to start; default: a rank for each core, at least two")
      ->check(CLI::Range(1, 4096))
      ->group(who);
  app.add_option("--backends", flags.backends, "our backends, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group(who);
  app.add_option("--memory", flags.memory, "ordinary, group (memory that all ranks see) or both")
      ->check(CLI::IsMember({"ordinary", "group", "both"}))
      ->capture_default_str()
      ->group(who);
  app.add_option("--peers", flags.peers, "other libraries: auto (all that are here), none, or names (openmpi, gloo:hd)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group(who);
  app.add_option("--peer-drivers", flags.peer_drivers, "folder with the programs that drive them")->group(who);
  app.add_option("--rounds", flags.rounds, "rounds in which all of them are measured in turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(who);
  app.add_option("--drop-peers", flags.drop_peers,
                 "after two rounds leave out peers that take this many times as long as the best; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(who);

  const auto output = "Output";
  app.add_option("-J,--output_file,--json", flags.json, "write everything to this file as JSON")->group(output);
  app.add_flag("--csv", flags.csv, "print comma-separated values in place of the table")->group(output);
  app.add_option("--plot", flags.plot, "draw time and bandwidth over size into this SVG file")->group(output);
  app.add_flag("--drive", flags.drive)->group("");
}

/// Says which flag a value belongs to.
template <class Parse>
auto parsed(const char* flag, const std::string& value, Parse parse) {
  try {
    return parse(value);
  } catch (const ValueError& e) {
    throw ValueError(fmt::format("{}: {}", flag, e.message()));
  }
}

std::vector<Operation> operations_of(const BenchFlags& flags) {
  std::vector<Operation> operations;
  for (const auto& name : flags.collectives) {
    if (name == "all") return all_operations();
    const auto operation = parsed("--collective", name, parse_operation);
    if (std::find(operations.begin(), operations.end(), operation) == operations.end()) {
      operations.push_back(operation);
    }
  }
  return operations;
}

std::vector<std::size_t> chosen_sizes(const BenchFlags& flags) {
  if (!flags.sizes.empty()) {
    std::vector<std::size_t> sizes;
    for (const auto& size : flags.sizes) sizes.push_back(parsed("--sizes", size, parse_size));
    return sizes;
  }
  Sweep sweep;
  sweep.min = parsed("--minbytes", flags.min_bytes, parse_size);
  sweep.max = parsed("--maxbytes", flags.max_bytes, parse_size);
  if (flags.step_bytes.empty()) {
    sweep.factor = flags.step_factor;
  } else {
    sweep.step = parsed("--stepbytes", flags.step_bytes, parse_size);
  }
  return sizes_of(sweep);
}

}  // namespace

std::shared_ptr<BenchFlags> add_bench_flags(CLI::App& command) {
  auto flags = std::make_shared<BenchFlags>();
  add_nccl_flags(command, *flags);
  add_comparing_flags(command, *flags);
  command.footer(footer);
  return flags;
}

BenchPlan make_bench_plan(const BenchFlags& flags) {
  BenchPlan plan;
  plan.operations = operations_of(flags);
  plan.sizes = chosen_sizes(flags);
  plan.command.reduction = parsed("--op", flags.reduction, parse_reduction);
  plan.command.dtype = parsed("--datatype", flags.dtype, parse_dtype);
  plan.command.root = flags.root;
  plan.command.iters = flags.iters;
  plan.command.warmup = flags.warmup_iters;
  plan.command.batch = flags.agg_iters;
  plan.command.blocking = flags.blocking;
  plan.command.limit = std::chrono::microseconds(static_cast<std::int64_t>(flags.limit_ms * 1e3));
  using Placements = ComparisonOptions::Placements;
  if (flags.placement == "in") plan.placements = Placements::in_place;
  if (flags.placement == "out") plan.placements = Placements::out_of_place;
  if (flags.memory != "group") plan.memory.push_back(MemoryKind::ordinary);
  if (flags.memory != "ordinary") plan.memory.push_back(MemoryKind::group);
  plan.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.timeout * 1e3));
  return plan;
}

}  // namespace cohort::bench
