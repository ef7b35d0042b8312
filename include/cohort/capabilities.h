// SPDX-License-Identifier: BSD-3-Clause
//
// What a group's backend supports, so that callers can ask before they try:
//
//   if (pg->capabilities().group_memory) use(pg->allocate(bytes));
#pragma once

#include <cohort/export.h>
#include <cohort/op_type.h>

#include <cstdint>
#include <initializer_list>

namespace cohort {

struct COHORT_API Capabilities {
  std::uint64_t operations = 0;      ///< one bit for each OpType
  bool group_memory = false;         ///< allocate()
  bool splitting = false;            ///< split()
  bool shrinking = false;            ///< shrink()
  bool regrouping = false;           ///< the group can be made again with other members: grow()
  bool without_peers = false;        ///< there are no other ranks to agree with: fake
  bool aborting = false;             ///< abort() ends operations that wait
  bool premul_sum = false;           ///< ReduceOp::premul_sum
  bool user_reductions = false;      ///< Reduction; set by the group, not by the backend
  bool deterministic_order = false;  ///< reductions combine the ranks in rank order
  bool stream_ordered = false;       ///< operations on device memory are enqueued; the host does not wait

  static constexpr std::uint64_t bit(OpType op) { return std::uint64_t{1} << (static_cast<unsigned>(op) & 63U); }
  static constexpr std::uint64_t bits(std::initializer_list<OpType> ops) {
    std::uint64_t all = 0;
    for (const auto op : ops) all |= bit(op);
    return all;
  }
  constexpr bool supports(OpType op) const { return (operations & bit(op)) != 0; }
};

}  // namespace cohort
