// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/rule_table.h"

#include <cohort/error.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/immortal.h"
#include "torch/dtensor/rules/sizes.h"

namespace cohort::dtensor {

namespace {

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

OpInfo info_from_schema(const c10::OperatorHandle& op, const Rule* rule) {
  const auto& schema = op.schema();
  OpInfo info{.rule = rule, .arguments = schema.arguments().size(), .results = schema.returns().size()};
  for (const auto& argument : schema.arguments()) {
    info.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  for (const auto& result : schema.returns()) {
    int same = -1;
    info.returns_view = info.returns_view || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
    if (result.alias_info() != nullptr && result.alias_info()->isWrite()) {
      for (std::size_t i = 0; i < info.arguments; ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (info.writes[i] && alias->beforeSets() == result.alias_info()->beforeSets()) same = static_cast<int>(i);
      }
    }
    info.result_is_argument.push_back(same);
  }
  return info;
}

}  // namespace

void RuleTable::add(std::string op, std::string_view family, RuleFunction run) {
  const std::lock_guard lock(mutex_);
  const auto check = size_check_of(op);
  const auto [rule, is_new] =
      rules_.try_emplace(std::move(op), Rule{.family = family, .run = std::move(run), .check = check});
  if (!is_new) throw ValueError(fmt::format("{} has a rule for distributed tensors already", rule->first));
  generation_.fetch_add(1, std::memory_order_release);
}

void RuleTable::add(std::initializer_list<const char*> ops, std::string_view family, const RuleFunction& run) {
  for (const auto* op : ops) add(op, family, run);
}

const OpInfo& RuleTable::info_of(const c10::OperatorHandle& op) {
  const std::lock_guard lock(mutex_);
  const auto found = rules_.find(full_name(op.operator_name()));
  const Rule* rule = found == rules_.end() ? nullptr : &found->second;
  auto& known = infos_[&op.operator_name()];
  if (known.empty() || known.back()->rule != rule) {
    known.push_back(std::make_unique<OpInfo>(info_from_schema(op, rule)));
  }
  return *known.back();
}

std::map<std::string, std::vector<std::string>> RuleTable::families() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<std::string>> families;
  for (const auto& [op, rule] : rules_) families[std::string(rule.family)].push_back(op);
  for (auto& [family, ops] : families) std::sort(ops.begin(), ops.end());
  return families;
}

RuleTable& rule_table() {
  static Immortal<RuleTable> table;
  static const bool is_filled = [] {
    add_pointwise_rules(*table);
    add_matmul_rules(*table);
    add_reduction_rules(*table);
    add_view_rules(*table);
    add_factory_rules(*table);
    add_softmax_rules(*table);
    add_norm_rules(*table);
    add_embedding_rules(*table);
    add_convolution_rules(*table);
    add_random_rules(*table);
    add_loss_rules(*table);
    add_indexing_rules(*table);
    return true;
  }();
  static_cast<void>(is_filled);
  return *table;
}

}  // namespace cohort::dtensor
