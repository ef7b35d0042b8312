// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/op_type.h>

namespace cohort {

std::string_view to_string(OpType op) noexcept {
  switch (op) {
    case OpType::broadcast:
      return "broadcast";
    case OpType::all_reduce:
      return "all_reduce";
    case OpType::all_reduce_coalesced:
      return "all_reduce_coalesced";
    case OpType::reduce:
      return "reduce";
    case OpType::all_gather:
      return "all_gather";
    case OpType::all_gather_single:
      return "all_gather_single";
    case OpType::all_gather_coalesced:
      return "all_gather_coalesced";
    case OpType::gather:
      return "gather";
    case OpType::scatter:
      return "scatter";
    case OpType::reduce_scatter:
      return "reduce_scatter";
    case OpType::all_to_all_single:
      return "all_to_all_single";
    case OpType::all_to_all:
      return "all_to_all";
    case OpType::send:
      return "send";
    case OpType::recv:
      return "recv";
    case OpType::recv_any_source:
      return "recv_any_source";
    case OpType::barrier:
      return "barrier";
    case OpType::reduce_scatter_single:
      return "reduce_scatter_single";
    case OpType::coalesced:
      return "coalesced";
    case OpType::unknown:
      break;
  }
  return "unknown";
}

}  // namespace cohort
