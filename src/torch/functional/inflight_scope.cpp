// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/issue_observer.h>
#include <cohort/torch/functional.h>

#include "torch/functional/work_registry.h"

namespace cohort::functional {

namespace {

void register_outputs(const Operation& op, const Work& work) {
  for (const auto& output : op.output_buffers) WorkRegistry::instance().add(output, work);
  for (const auto& member : op.members) register_outputs(member, work);
}

}  // namespace

struct InflightCollectivesScope::State {
  IssueObserver observer{[](const Issue& issue) {
    if (issue.options.async_op && !is_p2p(issue.op.type)) register_outputs(issue.op, issue.work);
  }};
};

InflightCollectivesScope::InflightCollectivesScope() : state_(std::make_unique<State>()) {}

InflightCollectivesScope::~InflightCollectivesScope() = default;

std::size_t unwaited_collectives() {
  return WorkRegistry::instance().size();
}

}  // namespace cohort::functional
