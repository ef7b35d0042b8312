// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/passes.h"

#include <utility>

namespace cohort::recording {

namespace {

/// What has left its call on a distributed tensor does not belong to it any more.
void tidy_calls(Program& program) {
  std::size_t current = 0;
  for (auto& each : program.instructions) {
    const bool begins = each.as<DistributedCall>() != nullptr;
    if (begins || each.region != current) current = begins ? each.region : 0;
    each.region = current;
  }
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
