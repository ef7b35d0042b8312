// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/program.h"

#include <algorithm>
#include <array>
#include <set>

namespace cohort::random_programs {

namespace {

// What a number is drawn for, so that one seed gives independent numbers.
enum class Draw : std::uint8_t { root = 1, peer, tag, member, throws, piece, cell, layout, place };

std::uint64_t drawn(const Step& step, Draw what, int a = 0, int b = 0) {
  return mixed(step.seed, static_cast<std::uint64_t>(what), static_cast<std::uint64_t>(a),
               static_cast<std::uint64_t>(b));
}

int below(std::uint64_t random, int n) {
  return static_cast<int>(random % static_cast<std::uint64_t>(n));
}

std::size_t varied(const Step& step, std::uint64_t random) {
  if (!step.is_uneven) return step.count;
  switch (random % 4) {
    case 0:
      return 0;
    case 1:
      return step.count / 2;
    case 2:
      return std::min<std::size_t>(step.count, 1 + (random >> 8U) % 7);
    default:
      return step.count;
  }
}

std::size_t piece_of(const Step& step, int i) {
  return varied(step, drawn(step, Draw::piece, i));
}

constexpr int coalesced = 3;

std::vector<std::size_t> pieces(const Step& step, int count) {
  std::vector<std::size_t> all;
  for (int i = 0; i < count; ++i) all.push_back(piece_of(step, i));
  return all;
}

std::vector<std::size_t> times(std::vector<std::size_t> counts, int n) {
  for (auto& each : counts) each *= static_cast<std::size_t>(n);
  return counts;
}

std::vector<std::size_t> row(const Step& step, int n, int rank, bool is_sent) {
  std::vector<std::size_t> all;
  for (int i = 0; i < n; ++i) all.push_back(is_sent ? cell_of(step, rank, i) : cell_of(step, i, rank));
  return all;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  std::size_t all = 0;
  for (const auto each : counts) all += each;
  return all;
}

}  // namespace

std::string_view to_string(Kind kind) {
  constexpr auto names = std::to_array<std::string_view>({"all_reduce",
                                                          "all_reduce of a list",
                                                          "all_reduce_coalesced",
                                                          "reduce",
                                                          "broadcast",
                                                          "all_gather",
                                                          "all_gather of a list",
                                                          "all_gather_coalesced",
                                                          "all_gather_coalesced of lists",
                                                          "gather",
                                                          "scatter",
                                                          "reduce_scatter",
                                                          "reduce_scatter of a list",
                                                          "reduce_scatter_coalesced",
                                                          "all_to_all",
                                                          "all_to_all with splits",
                                                          "all_to_all of lists",
                                                          "barrier",
                                                          "send and recv",
                                                          "send and recv around a ring",
                                                          "sends and recv_any_source",
                                                          "monitored_barrier",
                                                          "all_gather_bytes",
                                                          "broadcast_bytes",
                                                          "all_ok",
                                                          "split_group",
                                                          "drop",
                                                          "wait",
                                                          "batch"});
  static_assert(names.size() == kinds);
  return names[static_cast<std::size_t>(kind)];
}

std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t x = 0x9e3779b97f4a7c15U;
  for (const auto each : {a, b, c, d}) {
    x = (x ^ each) + 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    x ^= x >> 31U;
  }
  return x;
}

int root_of(const Step& step, int n) {
  return below(drawn(step, Draw::root), n);
}
int sender_of(const Step& step, int n) {
  return below(drawn(step, Draw::peer, 0), n);
}
int receiver_of(const Step& step, int n) {
  return below(drawn(step, Draw::peer, 1), n);
}
int shift_of(const Step& step, int n) {
  return below(drawn(step, Draw::peer, 2), n);
}
int tag_of(const Step& step) {
  // A receive from any source must not take another step's message.
  if (step.kind == Kind::any_source) return 1000 + step.number;
  return below(drawn(step, Draw::tag), 3);
}

std::vector<int> split_of(const Step& step, int n) {
  std::vector<int> ranks;
  const int always = root_of(step, n);
  for (int rank = 0; rank < n; ++rank) {
    if (rank == always || drawn(step, Draw::member, rank) % 3 != 0) ranks.push_back(rank);
  }
  return ranks;
}

bool throws_in(const Step& step, int rank) {
  return drawn(step, Draw::throws, rank) % 6 == 0;
}

std::size_t cell_of(const Step& step, int from, int to) {
  return varied(step, drawn(step, Draw::cell, from, to));
}

Layout layout_of(const Step& step, int rank) {
  return static_cast<Layout>(drawn(step, Draw::layout, rank) % 3);
}
bool wants_group_memory(const Step& step, int rank) {
  return drawn(step, Draw::place, rank) % 3 == 0;
}

Shape shape_of(const Step& step, int n, int rank) {
  const auto all = static_cast<std::size_t>(n);
  const auto count = step.count;
  const bool is_root = rank == root_of(step, n);
  switch (step.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::broadcast:
      return {{}, {count}};
    case Kind::all_reduce_list:
      return {{}, {count, count}};
    case Kind::all_reduce_coalesced:
      return {{}, pieces(step, coalesced)};
    case Kind::all_gather:
      return {{count}, {count * all}};
    case Kind::all_gather_list:
      return {{piece_of(step, rank)}, pieces(step, n)};
    case Kind::all_gather_coalesced:
      return {pieces(step, coalesced), times(pieces(step, coalesced), n)};
    case Kind::all_gather_lists_coalesced: {
      Shape shape{pieces(step, coalesced), {}};
      for (int r = 0; r < n; ++r) {
        shape.outputs.insert(shape.outputs.end(), shape.inputs.begin(), shape.inputs.end());
      }
      return shape;
    }
    case Kind::gather:
      return {{count}, std::vector<std::size_t>(is_root ? all : 0, count)};
    case Kind::scatter:
      return {std::vector<std::size_t>(is_root ? all : 0, count), {count}};
    case Kind::reduce_scatter:
      return {{count * all}, {count}};
    case Kind::reduce_scatter_list:
      return {pieces(step, n), {piece_of(step, rank)}};
    case Kind::reduce_scatter_coalesced:
      return {times(pieces(step, coalesced), n), pieces(step, coalesced)};
    case Kind::all_to_all:
      return {{count * all}, {count * all}};
    case Kind::all_to_all_uneven:
      return {{sum(row(step, n, rank, true))}, {sum(row(step, n, rank, false))}};
    case Kind::all_to_all_list:
      return {row(step, n, rank, true), row(step, n, rank, false)};
    case Kind::message: {
      Shape shape;
      if (rank == sender_of(step, n)) shape.inputs = {count};
      if (rank == receiver_of(step, n)) shape.outputs = {count};
      return shape;
    }
    case Kind::exchange:
      return {{piece_of(step, rank)}, {piece_of(step, (rank + n - shift_of(step, n)) % n)}};
    case Kind::any_source:
      if (is_root) return {{}, std::vector<std::size_t>(all - 1, count)};
      return {{count}, {}};
    default:
      return {};
  }
}

std::map<int, std::vector<int>> members_of(const Program& program) {
  std::map<int, std::vector<int>> members;
  for (int rank = 0; rank < program.size; ++rank) members[world].push_back(rank);
  for (const auto& step : program.steps) {
    if (step.kind != Kind::split) continue;
    const auto& parent = members.at(step.group);
    for (const int rank : split_of(step, static_cast<int>(parent.size()))) {
      members[step.number].push_back(parent[static_cast<std::size_t>(rank)]);
    }
  }
  return members;
}

Program with_steps(const Program& program, const std::vector<int>& numbers) {
  const std::set<int> wanted(numbers.begin(), numbers.end());
  std::set<int> groups{world};
  auto kept = program;
  kept.steps.clear();
  for (const auto& step : program.steps) {
    if (!wanted.contains(step.number) || !groups.contains(step.group)) continue;
    if (step.kind == Kind::split) groups.insert(step.number);
    kept.steps.push_back(step);
  }
  return kept;
}

Program with_elements(const Program& program, std::size_t most) {
  auto limited = program;
  for (auto& step : limited.steps) {
    step.count = std::min(step.count, most);
    for (auto& part : step.parts) part.count = std::min(part.count, most);
  }
  return limited;
}

}  // namespace cohort::random_programs
