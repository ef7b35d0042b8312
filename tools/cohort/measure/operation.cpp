// SPDX-License-Identifier: BSD-3-Clause
#include "measure/operation.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace cohort::bench {

namespace {

struct OperationName {
  Operation operation;
  std::string_view name;
  std::string_view in_nccl_tests;
};

constexpr std::array operation_names{
    OperationName{Operation::all_reduce, "all_reduce", "allreduce"},
    OperationName{Operation::broadcast, "broadcast", "bcast"},
    OperationName{Operation::reduce, "reduce", "reduce"},
    OperationName{Operation::all_gather, "all_gather", "allgather"},
    OperationName{Operation::reduce_scatter, "reduce_scatter", "reducescatter"},
    OperationName{Operation::all_to_all, "all_to_all", "alltoall"},
    OperationName{Operation::barrier, "barrier", "barrier"},
    OperationName{Operation::send_recv, "send_recv", "sendrecv"},
};

constexpr std::array<std::string_view, 5> reduction_names{"sum", "prod", "min", "max", "avg"};

}  // namespace

const std::vector<Operation>& all_operations() {
  static const auto operations = [] {
    std::vector<Operation> result;
    result.reserve(operation_names.size());
    for (const auto& entry : operation_names) result.push_back(entry.operation);
    return result;
  }();
  return operations;
}

std::string_view to_string(Operation operation) {
  return operation_names[static_cast<std::size_t>(operation)].name;
}

std::string_view to_string(Reduction reduction) {
  return reduction_names[static_cast<std::size_t>(reduction)];
}

Operation parse_operation(std::string_view name) {
  std::vector<std::string_view> known;
  for (const auto& entry : operation_names) {
    if (name == entry.name || name == entry.in_nccl_tests) return entry.operation;
    known.push_back(entry.name);
  }
  throw ValueError(fmt::format("\"{}\" is no collective: {} or all", name, fmt::join(known, ", ")));
}

Reduction parse_reduction(std::string_view name) {
  const auto* const found = std::find(reduction_names.begin(), reduction_names.end(), name);
  if (found == reduction_names.end()) {
    throw ValueError(fmt::format("\"{}\" is no reduction: {}", name, fmt::join(reduction_names, ", ")));
  }
  return static_cast<Reduction>(found - reduction_names.begin());
}

bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce || operation == Operation::reduce_scatter;
}

bool has_root(Operation operation) {
  return operation == Operation::broadcast || operation == Operation::reduce;
}

bool has_blocks(Operation operation) {
  return operation == Operation::all_gather || operation == Operation::reduce_scatter ||
         operation == Operation::all_to_all;
}

bool has_data(Operation operation) {
  return operation != Operation::barrier;
}

bool works_in_place(Operation operation) {
  return operation != Operation::all_to_all && operation != Operation::send_recv;
}

bool works_out_of_place(Operation operation) {
  return operation != Operation::broadcast && operation != Operation::barrier;
}

std::size_t element_count(Operation operation, std::size_t bytes, DType dtype, int ranks) {
  if (!has_data(operation)) return 0;
  const auto elements = bytes / size_of(dtype);
  return std::max<std::size_t>(has_blocks(operation) ? elements / static_cast<std::size_t>(ranks) : elements, 1);
}

std::size_t total_bytes(Operation operation, std::size_t count, DType dtype, int ranks) {
  return count * size_of(dtype) * (has_blocks(operation) ? static_cast<std::size_t>(ranks) : 1);
}

double bus_factor(Operation operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (n - 1) / n;
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::all_to_all:
      return (n - 1) / n;
    case Operation::broadcast:
    case Operation::reduce:
    case Operation::send_recv:
      return 1;
    case Operation::barrier:
      return 0;
  }
  return 0;
}

}  // namespace cohort::bench
