// SPDX-License-Identifier: BSD-3-Clause
//
// Which collectives a rank performs, and which it should.
#pragma once

#include <cohort/process_group.h>
#include <cohort/torch/placement.h>

#include <memory>
#include <utility>
#include <vector>

namespace cohort::test {

/// The collectives that a rank issues on some groups from now on, in order.
class CollectiveLog {
 public:
  explicit CollectiveLog(const std::vector<ProcessGroupPtr>& groups) {
    for (const auto& group : groups) {
      group->add_pre_hook([ops = ops_](const HookEvent& event) { ops->push_back(event.op); });
    }
  }
  std::vector<OpType> take() { return std::exchange(*ops_, {}); }

 private:
  std::shared_ptr<std::vector<OpType>> ops_ = std::make_shared<std::vector<OpType>>();
};

/// The table of the specification.
inline std::vector<OpType> collectives_of(const Placement& from, const Placement& to) {
  if (from.is_shard()) return {to.is_shard() ? OpType::all_to_all_single : OpType::all_gather_single};
  if (from.is_partial()) return {to.is_shard() ? OpType::reduce_scatter_single : OpType::all_reduce};
  return {};
}

}  // namespace cohort::test
