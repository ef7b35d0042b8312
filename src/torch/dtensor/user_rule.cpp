// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/dtensor_rule.h>
#include <fmt/format.h>

#include <utility>

#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort {

namespace {

using dtensor::OpCall;

RuleCall described_for_user(const OpCall& call) {
  RuleCall described{.sizes = {}, .arguments = {}, .mesh = call.mesh()};
  for (const auto& each : call.tensors()) described.sizes.push_back(each.sizes.vec());
  for (std::size_t i = 0; i < call.arguments(); ++i) described.arguments.push_back(call.argument(i));
  return described;
}

void run_user_rule(OpCall& call, const DTensorRule& rule) {
  const auto described = described_for_user(call);
  const auto results = rule.result_sizes(described);
  if (results.size() != call.info().results) {
    throw ValueError(fmt::format("the rule for {} gives sizes of {} results; the operator has {}", call.name(),
                                 results.size(), call.info().results));
  }
  dtensor::Strategies strategies;
  for (const auto& each : rule.strategies(described)) {
    if (each.arguments.size() != call.tensors().size() || each.results.size() != results.size()) {
      throw ValueError(
          fmt::format("the rule for {} has a strategy with {} arguments and {} results; the call has {} and {}",
                      call.name(), each.arguments.size(), each.results.size(), call.tensors().size(), results.size()));
    }
    strategies.push_back({.arguments = {each.arguments.begin(), each.arguments.end()},
                          .results = {each.results.begin(), each.results.end()}});
  }
  strategies.push_back(dtensor::all_replicated(call, results.size()));
  dtensor::SizesList sizes;
  for (const auto& each : results) sizes.emplace_back(each);
  // Whether a user's operator minds strided parts is not known.
  const auto decision = dtensor::choose(call, strategies, false);
  call.localize(decision.arguments);
  call.run_local();
  call.wrap_results(decision.results, sizes);
}

}  // namespace

void register_dtensor_rule(std::string op, DTensorRule rule) {
  if (!rule.strategies || !rule.result_sizes) {
    throw ValueError(fmt::format("the rule for {} needs both strategies and result_sizes", op));
  }
  dtensor::rule_table().add(std::move(op), "user",
                            [rule = std::move(rule)](OpCall& call) { run_user_rule(call, rule); });
}

}  // namespace cohort
