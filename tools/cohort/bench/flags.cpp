// SPDX-License-Identifier: BSD-3-Clause
#include "bench/flags.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "measure/sizes.h"

namespace cohort::bench {

using namespace measure;

namespace {

constexpr auto footer = R"(Examples:
  cohort bench                                           all_reduce over shared memory, one rank per core
  cohort bench all_gather,broadcast -b 8 -e 128M -f 2    sizes and flags as in nccl-tests
  cohort bench --ranks 4 --backends shm,thread --memory both --plot result.svg
  cohort bench --ranks 2 --peers peers.json --rounds 9   in turn with other programs, such as those of bench/peers
  cohort run -n 8 cohort bench -e 64M                    with the ranks and the environment of a launcher
  cohort bench --backends nccl --ranks 4 -b 8 -e 1G      one rank for each of four GPUs
  mpirun -n 4 cohort bench --backends mpi                MPI starts its own ranks

A size is that of the whole array: each of n ranks contributes an n-th of it to an all_gather. A time is that of the
slowest rank. Short operations are timed several at a time. Arrays of 16 KiB and more are rewritten between
operations, as a program would do, unless --back-to-back, -m or -z 0 asks for operations one after another. busbw is
the bandwidth of the slowest link: time and algbw depend on the number of ranks, whereas busbw can be compared with what
the hardware can do.)";

/// The flags under one heading of --help.
class FlagGroup {
 public:
  FlagGroup(CLI::App& app, const char* heading) : app_(app), heading_(heading) {}

  template <class T>
  CLI::Option* add(const char* names, T& value, const char* description) {
    return app_.add_option(names, value, description)->capture_default_str()->group(heading_);
  }
  CLI::Option* add_list(const char* names, std::vector<std::string>& values, const char* description) {
    return add(names, values, description)->delimiter(',')->allow_extra_args(false);
  }

 private:
  CLI::App& app_;
  const char* heading_;
};

void add_nccl_flags(CLI::App& app, BenchFlags& flags) {
  FlagGroup sizes(app, "Sizes");
  sizes.add("-b,--minbytes", flags.min_bytes, "smallest size; the suffixes K, M and G are powers of 1024");
  sizes.add("-e,--maxbytes", flags.max_bytes, "largest size");
  sizes.add("-f,--stepfactor", flags.step_factor, "multiply by this from size to size");
  sizes.add("-i,--stepbytes", flags.step_bytes, "add this many bytes from size to size instead");
  sizes.add_list("--sizes", flags.sizes, "measure these sizes instead, separated by commas");

  FlagGroup what(app, "What is measured");
  what.add("collective,--collective", flags.collectives,
           "all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, barrier, send_recv, or all")
      ->delimiter(',');
  what.add("-o,--op", flags.reduction, "sum, prod, min, max or avg");
  what.add("-d,--datatype", flags.dtype, "f32, f16, bf16, f64, i8, u8, i16, i32, i64, ...");
  what.add("-r,--root", flags.root, "root of broadcast and reduce")->check(CLI::NonNegativeNumber);
  what.add("--placement", flags.placement, "for operations that can do both: in (in place), out (out of place) or both")
      ->check(CLI::IsMember({"in", "out", "both"}));
  what.add("-z,--blocking", flags.blocking,
           "1: wait for each operation; 0: issue all operations of a sample, then wait");

  FlagGroup how(app, "How");
  how.add("-n,--iters", flags.iters, "samples of each size")->check(CLI::PositiveNumber);
  how.add("-w,--warmup_iters,--warmup-iters", flags.warmup_iters, "operations before the first sample")
      ->check(CLI::NonNegativeNumber);
  how.add("-m,--agg_iters,--agg-iters", flags.agg_iters,
          "operations in a sample; 0: one, or as many as the clock needs where they are short")
      ->check(CLI::NonNegativeNumber);
  app.add_flag(
         "--back-to-back", flags.back_to_back,
         "operations follow one another on memory that nobody touches in between, as in OSU's and nccl-tests' loops, "
         "and samples are taken for the time of --limit-ms (default then: 60). Otherwise every rank rewrites its "
         "array before each operation on 16 KiB or more, as programs do")
      ->group("How");
  how.add("-c,--check", flags.check, "1: check results against a serial reference; 0: do not");
  how.add("-N,--run_cycles,--run-cycles", flags.run_cycles, "repeat the whole table this often")
      ->check(CLI::PositiveNumber);
  how.add("-T,--timeout", flags.timeout, "seconds after which a start or a measurement counts as hung")
      ->check(CLI::PositiveNumber);
  how.add("--limit-ms", flags.limit_ms,
          "take fewer samples, but at least three, when a measurement lasts longer than this; 0: never")
      ->check(CLI::NonNegativeNumber);
}

void add_comparing_flags(CLI::App& app, BenchFlags& flags) {
  FlagGroup who(app, "Who takes part");
  app.add_option("--ranks", flags.ranks, "ranks to start; default: one per core, at least two")
      ->check(CLI::Range(1, 4096))
      ->group("Who takes part");
  who.add_list("--backends", flags.backends, "Cohort's backends, separated by commas; none: only --peers");
  who.add("--memory", flags.memory, "ordinary, group (memory that all ranks see) or both")
      ->check(CLI::IsMember({"ordinary", "group", "both"}));
  who.add("--device", flags.device,
          "where the arrays are: cpu, cuda (each rank takes a GPU), or auto: cuda for nccl, cpu for other backends")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  who.add(
      "--peers", flags.peers,
      "file that lists other programs that measure the same, with \"name\", \"command\" and \"environment\" of each "
      "(JSON; bench/peers/settings.py writes one for Open MPI, MPICH and Gloo)");
  who.add("--rounds", flags.rounds, "rounds in which everybody is measured in turn")->check(CLI::PositiveNumber);
  who.add("--drop-peers", flags.drop_peers,
          "after two rounds leave out peers that take this many times as long as the best one; 0: keep all")
      ->check(CLI::NonNegativeNumber);

  FlagGroup output(app, "Output");
  output.add("-J,--output_file,--json", flags.json, "write everything to this file as JSON");
  output.add("--plot", flags.plot, "draw time and bandwidth over size into this SVG file");
  app.add_flag("--csv", flags.csv, "print comma-separated values instead of the table")->group("Output");
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
  plan.command.back_to_back = flags.back_to_back;
  constexpr double slice_ms = 60;
  const double limit_ms = flags.back_to_back && flags.limit_ms == 0 ? slice_ms : flags.limit_ms;
  plan.command.limit = std::chrono::microseconds(static_cast<std::int64_t>(limit_ms * 1e3));
  using Placements = ComparisonOptions::Placements;
  if (flags.placement == "in") plan.placements = Placements::in_place;
  if (flags.placement == "out") plan.placements = Placements::out_of_place;
  if (flags.memory != "group") plan.memory.push_back(MemoryKind::ordinary);
  if (flags.memory != "ordinary") plan.memory.push_back(MemoryKind::group);
  plan.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.timeout * 1e3));
  return plan;
}

}  // namespace cohort::bench
