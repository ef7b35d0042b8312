// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/passes.h"

#include <utility>

namespace cohort::recording {

std::vector<PassReport> optimize(Program& program, const PassOptions& options) {
  std::vector<PassReport> reports;
  const auto run = [&](bool is_on, auto pass) {
    if (!is_on) return;
    auto report = pass(program);
    if (report.count > 0) reports.push_back(std::move(report));
  };
  run(options.remove_dead, remove_dead);
  run(options.merge_common, merge_common);
  run(options.overlap, overlap);
  return reports;
}

}  // namespace cohort::recording
