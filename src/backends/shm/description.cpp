// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace cohort::shm {

namespace {

// From the lowest bit: 5 of op, 4 of dtype, 4 of reduction, 1 for reachable_memory, 14 of root, 36 of bytes.
constexpr unsigned dtype_at = 5;
constexpr unsigned reduce_at = 9;
constexpr unsigned root_at = 14;
constexpr unsigned bytes_at = 28;
constexpr std::uint64_t most_bytes = (std::uint64_t{1} << 36U) - 1;

bool reduces(OpType op) {
  return op == OpType::all_reduce || op == OpType::reduce || op == OpType::reduce_scatter;
}
bool has_root(OpType op) {
  return op == OpType::reduce || op == OpType::broadcast || op == OpType::gather || op == OpType::scatter;
}

}  // namespace

std::uint64_t Description::pack() const {
  return static_cast<std::uint64_t>(op) | static_cast<std::uint64_t>(dtype) << dtype_at |
         static_cast<std::uint64_t>(reduce) << reduce_at | static_cast<std::uint64_t>(root) << root_at |
         std::min(bytes, most_bytes) << bytes_at;
}

Description Description::unpack(std::uint64_t word) {
  return {.op = static_cast<OpType>(word & 31U),
          .dtype = static_cast<DType>(word >> dtype_at & 15U),
          .reduce = static_cast<ReduceOp::Kind>(word >> reduce_at & 15U),
          .root = static_cast<int>(word >> root_at & 0x3fffU),
          .bytes = word >> bytes_at};
}

std::string to_string(const Description& description) {
  std::vector<std::string> parts;
  if (reduces(description.op)) {
    parts.emplace_back(to_string(description.reduce));
    parts.emplace_back(to_string(description.dtype));
  }
  if (description.bytes > 0) parts.push_back(fmt::format("{} bytes", description.bytes));
  if (has_root(description.op)) parts.push_back(fmt::format("root {}", description.root));
  return fmt::format("{}({})", to_string(description.op), fmt::join(parts, ", "));
}

}  // namespace cohort::shm
