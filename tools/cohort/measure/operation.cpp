// SPDX-License-Identifier: BSD-3-Clause
#include "measure/operation.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace cohort::measure {

namespace {

/// Bus bandwidth over algorithm bandwidth, for n ranks.
enum class BusFactor : std::uint8_t { none, one, blocks, twice };  // 0, 1, (n - 1) / n, 2 (n - 1) / n

struct Traits {
  std::string_view name;
  std::string_view in_nccl_tests;
  bool reduces;
  bool has_root;
  bool has_blocks;
  bool in_place;
  bool out_of_place;
  BusFactor bus;
};

// In the order of Operation.
constexpr std::array<Traits, 8> all_traits{{
    {"all_reduce", "allreduce", true, false, false, true, true, BusFactor::twice},
    {"broadcast", "bcast", false, true, false, true, false, BusFactor::one},
    {"reduce", "reduce", true, true, false, true, true, BusFactor::one},
    {"all_gather", "allgather", false, false, true, true, true, BusFactor::blocks},
    {"reduce_scatter", "reducescatter", true, false, true, true, true, BusFactor::blocks},
    {"all_to_all", "alltoall", false, false, true, false, true, BusFactor::blocks},
    {"barrier", "barrier", false, false, false, true, false, BusFactor::none},
    {"send_recv", "sendrecv", false, false, false, false, true, BusFactor::one},
}};

const Traits& traits(Operation operation) {
  return all_traits[static_cast<std::size_t>(operation)];
}

constexpr std::array<std::string_view, 5> reduction_names{"sum", "prod", "min", "max", "avg"};

}  // namespace

std::vector<Operation> all_operations() {
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < all_traits.size(); ++i) operations.push_back(static_cast<Operation>(i));
  return operations;
}

std::string_view to_string(Operation operation) {
  return traits(operation).name;
}

std::string_view to_string(Reduction reduction) {
  return reduction_names[static_cast<std::size_t>(reduction)];
}

Operation parse_operation(std::string_view name) {
  std::vector<std::string_view> known;
  for (const auto operation : all_operations()) {
    if (name == traits(operation).name || name == traits(operation).in_nccl_tests) return operation;
    known.push_back(traits(operation).name);
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
  return traits(operation).reduces;
}
bool has_root(Operation operation) {
  return traits(operation).has_root;
}
bool has_blocks(Operation operation) {
  return traits(operation).has_blocks;
}
bool has_data(Operation operation) {
  return operation != Operation::barrier;
}
bool works_in_place(Operation operation) {
  return traits(operation).in_place;
}
bool works_out_of_place(Operation operation) {
  return traits(operation).out_of_place;
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
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (traits(operation).bus) {
    case BusFactor::none:
      return 0;
    case BusFactor::one:
      return 1;
    case BusFactor::blocks:
      return share;
    case BusFactor::twice:
      return 2 * share;
  }
  return 0;
}

}  // namespace cohort::measure
