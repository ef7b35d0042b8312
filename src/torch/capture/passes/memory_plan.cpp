// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "graph/names.h"

namespace cohort::recording {

namespace {

constexpr std::size_t arena_alignment = 64;  // as libtorch's allocator on the CPU

std::size_t in_arena(std::size_t bytes) {
  return (bytes + arena_alignment - 1) / arena_alignment * arena_alignment;
}

bool live_together(const Lifetime& a, const Lifetime& b) {
  return a.first <= b.last && b.first <= a.last;
}

}  // namespace

std::vector<Lifetime> lifetimes_of(const Program& program, std::span<const std::size_t> order) {
  const auto& values = program.values;
  std::vector<Lifetime> lifetimes;
  std::unordered_map<std::size_t, std::size_t> places;  // of the storages, in the list
  std::vector<bool> is_permanent;
  const auto permanent = [&](std::size_t storage) {
    if (storage >= is_permanent.size()) is_permanent.resize(storage + 1);
    return is_permanent[storage];
  };
  for (const auto& each : values) {
    permanent(each.storage);
    if (each.shown.origin != GraphValue::Origin::result) is_permanent[each.storage] = true;
  }
  const auto use = [&](ValueId id, std::size_t when) {
    const auto storage = values[id].storage;
    if (permanent(storage)) return;
    const auto [place, is_new] = places.emplace(storage, lifetimes.size());
    // The value made first shows the whole storage; later ones are views.
    if (is_new) {
      lifetimes.push_back({.storage = storage, .bytes = bytes_of(values[id].shown), .first = when, .last = when});
    }
    lifetimes[place->second].last = when;
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto& each = program.instructions[order[i]];
    for (const auto& result : each.results) use(result.value, i);
    for (const auto id : each.reads) use(id, i);
    for (const auto id : each.writes) use(id, i);
  }
  for (const auto& each : program.outputs) {
    if (each.value) use(*each.value, order.size());
  }
  for (const auto& each : program.final_gradients) {
    if (each.tensor.value) use(*each.tensor.value, order.size());
  }
  return lifetimes;
}

std::vector<Lifetime> lifetimes_of(const Program& program) {
  std::vector<std::size_t> order(program.instructions.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return lifetimes_of(program, order);
}

std::vector<std::size_t> live_bytes(std::span<const Lifetime> lifetimes, std::size_t instructions) {
  std::vector<std::size_t> live(instructions + 1);  // unsigned differences, which wrap around and back
  for (const auto& each : lifetimes) {
    live[each.first] += each.bytes;
    if (each.last + 1 < live.size()) live[each.last + 1] -= each.bytes;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  return live;
}

MemoryPlan plan_memory(std::span<const Lifetime> lifetimes, std::size_t instructions) {
  MemoryPlan plan;
  plan.offsets.resize(lifetimes.size());
  for (const auto& each : lifetimes) plan.made += each.bytes;
  const auto live = live_bytes(lifetimes, instructions);
  plan.peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());

  std::vector<std::size_t> by_size(lifetimes.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::size_t a, std::size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  std::vector<std::size_t> placed;  // by offset
  for (const auto each : by_size) {
    const auto bytes = in_arena(lifetimes[each].bytes);
    auto smallest_gap = std::numeric_limits<std::size_t>::max();
    std::size_t best = 0;
    std::size_t end = 0;  // of what lies below
    bool is_found = false;
    for (const auto other : placed) {
      if (!live_together(lifetimes[each], lifetimes[other])) continue;
      const auto offset = plan.offsets[other];
      if (offset >= end + bytes && offset - end < smallest_gap) {
        smallest_gap = offset - end;
        best = end;
        is_found = true;
      }
      end = std::max(end, offset + in_arena(lifetimes[other].bytes));
    }
    plan.offsets[each] = is_found ? best : end;
    plan.arena = std::max(plan.arena, plan.offsets[each] + bytes);
    const auto place = std::upper_bound(placed.begin(), placed.end(), each, [&](std::size_t a, std::size_t b) {
      return plan.offsets[a] < plan.offsets[b];
    });
    placed.insert(place, each);
  }
  return plan;
}

std::string memory_text(const Program& program) {
  const auto plan = plan_memory(lifetimes_of(program), program.instructions.size());
  using graph_names::bytes_text;
  return fmt::format("temporaries: a peak of {} of {} made, {} in one arena", bytes_text(plan.peak),
                     bytes_text(plan.made), bytes_text(plan.arena));
}

}  // namespace cohort::recording
