// SPDX-License-Identifier: BSD-3-Clause
//
// Which operator has which rule.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "torch/dtensor/rule.h"

namespace cohort::dtensor {

class RuleTable {
 public:
  /// `op` is a full name ("aten::add.Tensor"). Throws ValueError if the operator has a rule already.
  void add(std::string op, std::string_view family, RuleFunction run);
  void add(std::initializer_list<const char*> ops, std::string_view family, const RuleFunction& run);

  /// Stays valid. Takes a lock.
  const OpInfo& info_of(const c10::OperatorHandle& op);
  /// Changes with every rule that is added: what was looked up before may have one now.
  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  /// The operators of each family, sorted.
  std::map<std::string, std::vector<std::string>> families() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<std::uint64_t> generation_{0};
  std::unordered_map<std::string, Rule> rules_;  // nodes stay where they are
  /// Infos of earlier generations are kept, because calls in progress may use them.
  std::unordered_map<const c10::OperatorName*, std::vector<std::unique_ptr<OpInfo>>> infos_;
};

/// The table of this process, with the built-in rules.
RuleTable& rule_table();

// The built-in rules, one file for each family.
void add_pointwise_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_factory_rules(RuleTable& table);
void add_softmax_rules(RuleTable& table);
void add_norm_rules(RuleTable& table);
void add_embedding_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_random_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_indexing_rules(RuleTable& table);

}  // namespace cohort::dtensor
