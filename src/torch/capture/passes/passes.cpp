// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/passes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace cohort::recording {

namespace {

/// What has left its call on a distributed tensor does not belong to it any more, and a call of which nothing is left
/// goes.
void tidy_calls(Program& program) {
  auto& instructions = program.instructions;
  std::size_t current = 0;
  std::unordered_map<std::size_t, std::size_t> parts;
  for (auto& each : instructions) {
    if (each.distributed != nullptr) {
      current = each.region;
      continue;
    }
    if (each.region != current) current = 0;
    each.region = current;
    if (current != 0) ++parts[current];
  }
  std::erase_if(instructions,
                [&](const Instruction& each) { return each.distributed != nullptr && !parts.contains(each.region); });
}

}  // namespace

std::vector<PassReport> optimize(Program& program, const PassOptions& options) {
  std::vector<PassReport> reports;
  const auto run = [&](bool is_on, const auto& pass) {
    if (!is_on) return;
    auto report = pass(program);
    if (report.count > 0) reports.push_back(std::move(report));
  };
  run(options.remove_dead, remove_dead);
  run(options.merge_common, merge_common);
  run(options.fuse_collectives, [&](Program& it) { return fuse_collectives(it, options.fuse_cap); });
  run(options.overlap, overlap);
  tidy_calls(program);
  return reports;
}

}  // namespace cohort::recording
