// SPDX-License-Identifier: BSD-3-Clause
//
// Measures process groups against their bars (docs/performance.md); `cohort bench` measures single collectives.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "group_benchmarks.h"
#include "program.h"
#include "torch_group.h"

namespace {

using namespace cohort::bench;

struct Arguments {
  int rounds = 11;
  NewGroupOptions new_group;
  OverlapOptions overlap;
  BandwidthOptions bandwidth;
  CallCostOptions call;
};

const std::vector<std::string> figures{"new_group", "overlap", "bandwidth", "call"};

void describe(CLI::App& app, Arguments& arguments) {
  app.add_option("--rounds", arguments.rounds, "Rounds of each figure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  const auto sizes = [&app](const std::string& name, std::vector<int>& value, const std::string& what) {
    app.add_option(name, value, what)->delimiter(',')->check(CLI::PositiveNumber)->capture_default_str();
  };
  sizes("--ranks", arguments.new_group.ranks, "Sizes of the groups that new_group makes");
  app.add_option("--overlap-ranks", arguments.overlap.ranks, "Ranks that compute and reduce; each needs two cores")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sizes("--bandwidth-ranks", arguments.bandwidth.ranks, "Sizes of the groups whose all_reduce is held to the floor");
}

void run(const Program& program, Arguments arguments, Report& report) {
  arguments.new_group.rounds = arguments.overlap.rounds = arguments.bandwidth.rounds = arguments.call.rounds =
      arguments.rounds;
  if (program.wants("new_group")) {
    if (!TorchGroup::is_available()) {
      fmt::print("PyTorch's gloo is skipped: this program was built without libtorch (Debian: libtorch-dev)\n");
    }
    measure_new_group(arguments.new_group, report);
    report.print("new_group on one host, from call to return (ratio: how many times faster)");
  }
  if (program.wants("overlap")) {
    measure_overlap(arguments.overlap, report);
    report.print(fmt::format("16 MiB all_reduce beside a computation, {} ranks", arguments.overlap.ranks));
  }
  if (program.wants("bandwidth")) {
    measure_bandwidth(arguments.bandwidth, report);
    report.print("64 MiB all_reduce on memory of the group (ratio: share of the floor)");
  }
  if (program.wants("call")) {
    measure_call_cost(arguments.call, report);
    report.print("The time of a small collective of 2 processes (difference: above the flags alone)");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Program program(
      "Measures process groups: making one against PyTorch's gloo, a computation beside an asynchronous all_reduce, a "
      "large all_reduce against what memory bandwidth allows, and the parts of a small one.",
      figures);
  Arguments arguments;
  describe(program.app, arguments);
  return program.run(argc, argv, [&](Report& report) { run(program, arguments, report); });
}
