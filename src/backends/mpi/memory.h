// SPDX-License-Identifier: BSD-3-Clause
//
// The memory of a collective: the pieces, one for each rank, that gathers and scatters take, and scratch memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "core/rank_index.h"
#include "reduce/copy.h"

namespace cohort::mpi {

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) reduce::copy(to, from, bytes);
}

template <class Spans>
std::size_t total_of(const Spans& spans) {
  std::size_t total = 0;
  for (const auto& each : spans) total += each.size();
  return total;
}

template <class Spans>
bool all_equal(const Spans& spans) {
  return std::all_of(spans.begin(), spans.end(), [&](const auto& each) { return each.size() == spans[0].size(); });
}

/// Where the pieces begin if they lie one after another; nullopt if they do not.
template <class Spans>
auto packed_start(const Spans& spans) -> std::optional<decltype(spans[0].data())> {
  std::size_t offset = 0;
  std::optional<decltype(spans[0].data())> start;
  for (const auto& each : spans) {
    if (each.empty()) continue;
    if (!start) start = each.data() - offset;
    if (each.data() != *start + offset) return std::nullopt;
    offset += each.size();
  }
  return start;
}

/// An address for an empty piece: to MPI, null means something else.
inline std::byte* somewhere() {
  static std::array<std::byte, 16> bytes{};
  return bytes.data();
}

/// Scratch memory that is kept from call to call, and never freed once an operation that uses it has been given up.
class Scratch {
 public:
  enum class Use { in, out };

  std::byte* get(Use use, std::size_t bytes) {
    auto& area = areas_[static_cast<std::size_t>(use)];
    if (area.size() < bytes) {
      area.clear();  // its contents need not be copied
      area.resize(bytes);
    }
    return area.data();
  }

 private:
  std::array<std::vector<std::byte>, 2> areas_{};
};

}  // namespace cohort::mpi
