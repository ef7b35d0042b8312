// SPDX-License-Identifier: BSD-3-Clause
//
// Measures process groups against their bars (docs/performance.md); `cohort bench` measures single collectives.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "group_benchmarks.h"
#include "torch_group.h"

namespace {

using namespace cohort::bench;

struct Arguments {
  std::vector<std::string> only;
  std::string json;
  unsigned limit = 300;
  int rounds = 11;
  NewGroupOptions new_group;
  OverlapOptions overlap;
  BandwidthOptions bandwidth;
};

const std::vector<std::string> names{"new_group", "overlap", "bandwidth"};

void describe(CLI::App& app, Arguments& arguments) {
  app.add_option("--only", arguments.only, "These alone: new_group, overlap, bandwidth")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--json", arguments.json, "Write the figures to this file as well");
  app.add_option("--limit", arguments.limit, "Give up after so many seconds")->capture_default_str();
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

void run(Arguments arguments) {
  arguments.new_group.rounds = arguments.overlap.rounds = arguments.bandwidth.rounds = arguments.rounds;
  Report report;
  const auto wanted = [&](const std::string& name) {
    return arguments.only.empty() || std::count(arguments.only.begin(), arguments.only.end(), name) > 0;
  };
  if (wanted("new_group")) {
    if (!TorchGroup::is_available()) {
      fmt::print("PyTorch's gloo is skipped: this program was built without libtorch (Debian: libtorch-dev)\n");
    }
    measure_new_group(arguments.new_group, report);
    report.print("new_group on one host, from call to return (ratio: how many times faster)");
  }
  if (wanted("overlap")) {
    measure_overlap(arguments.overlap, report);
    report.print(fmt::format("16 MiB all_reduce beside a computation, {} ranks", arguments.overlap.ranks));
  }
  if (wanted("bandwidth")) {
    measure_bandwidth(arguments.bandwidth, report);
    report.print("64 MiB all_reduce on memory of the group (ratio: share of the floor)");
  }
  if (!arguments.json.empty()) report.write_json(arguments.json);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures process groups: making one against PyTorch's gloo, a computation beside an asynchronous all_reduce, a "
      "large all_reduce against what memory bandwidth allows.\n"
      "A missed bar is printed as MISSED and does not change the exit code.");
  Arguments arguments;
  describe(app, arguments);
  CLI11_PARSE(app, argc, argv);
  // Nothing here may hang: the children go with this process.
  ::alarm(arguments.limit);
  try {
    run(std::move(arguments));
  } catch (const std::exception& e) {
    fmt::print(stderr, "group_bench: {}\n", e.what());
    return 1;
  }
}
