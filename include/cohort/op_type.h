// SPDX-License-Identifier: BSD-3-Clause
//
// The types of operations, for Work, hooks, errors and the flight recorder. The numbers are those of PyTorch.
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <string_view>

namespace cohort {

enum class OpType : std::uint8_t {
  broadcast = 0,
  all_reduce = 1,
  all_reduce_coalesced = 2,
  reduce = 3,
  all_gather = 4,
  all_gather_single = 5,
  all_gather_coalesced = 6,
  gather = 7,
  scatter = 8,
  reduce_scatter = 9,
  all_to_all_single = 10,
  all_to_all = 11,
  send = 12,
  recv = 13,
  recv_any_source = 14,
  barrier = 15,
  reduce_scatter_single = 16,
  coalesced = 17,
  unknown = 100,
};

/// "all_reduce", "all_gather_single", ... The text has static storage duration.
COHORT_API std::string_view to_string(OpType op) noexcept;

constexpr bool is_p2p(OpType op) noexcept {
  return op == OpType::send || op == OpType::recv || op == OpType::recv_any_source;
}

}  // namespace cohort
