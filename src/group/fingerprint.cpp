// SPDX-License-Identifier: BSD-3-Clause
//
// The check of debug level detail: before a collective all ranks exchange a text of what they are about to do. Since
// every rank gets every text, every rank finds the difference, and the group stays in step.
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "group/process_group_state.h"

namespace cohort {

namespace {

constexpr std::size_t longest = 480;

/// Shapes may differ between ranks by right in these.
bool has_own_shapes(const detail::Operation& operation) {
  switch (operation.type) {
    case OpType::all_to_all:
    case OpType::all_to_all_single:
    case OpType::barrier:
      return true;
    case OpType::all_gather:
      return std::any_of(operation.outs.begin(), operation.outs.end(),
                         [&](const auto& out) { return out.size() != operation.outs[0].size(); });
    case OpType::reduce_scatter:
      return std::any_of(operation.ins.begin(), operation.ins.end(),
                         [&](const auto& in) { return in.size() != operation.ins[0].size(); });
    default:
      return !operation.members.empty();
  }
}

template <class Buffers>
void describe(std::vector<std::string>& shapes, std::vector<std::string_view>& dtypes, const Buffers& buffers) {
  for (const ConstBuffer& buffer : buffers) {
    shapes.push_back(to_string(buffer.sizes()));
    dtypes.push_back(to_string(buffer.dtype()));
  }
}

/// The parts that are compared one by one, so that the error can say which differ.
struct Fingerprint {
  std::string text{};
  static constexpr std::array<const char*, 6> aspects{"sequence number", "operation", "reduction", "root",
                                                      "dtypes",          "shapes"};

  Fingerprint(const detail::Operation& operation, std::uint64_t sequence) {
    std::vector<std::string> shapes;
    std::vector<std::string_view> dtypes;
    // Away from the root a gather has no outputs and a scatter no inputs.
    if (operation.type != OpType::scatter) describe(shapes, dtypes, operation.inputs);
    if (operation.type != OpType::gather) describe(shapes, dtypes, operation.outputs);
    if (has_own_shapes(operation)) shapes = {"any"};
    text = fmt::format("#{}|{}|{}|root {}|{}|{}", sequence, to_string(operation.type), to_string(operation.reduce),
                       operation.root_or_peer, fmt::join(dtypes, ","), fmt::join(shapes, ","));
    text.resize(longest);  // what is longer is compared as far as it goes
  }
};

std::string readable(std::string text) {
  text.resize(std::min(text.find('\0'), text.size()));
  std::replace(text.begin(), text.end(), '|', ' ');
  return text;
}

std::vector<std::string> differences(std::string_view a, std::string_view b) {
  std::vector<std::string> found;
  for (const auto* const aspect : Fingerprint::aspects) {
    const auto cut = [](std::string_view& rest) {
      const auto end = std::min(rest.find('|'), rest.size());
      const auto part = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      return part;
    };
    if (cut(a) != cut(b)) found.emplace_back(aspect);
  }
  return found;
}

}  // namespace

void compare_fingerprints(Backend& backend, const detail::Operation& operation, Call& call) {
  const auto n = static_cast<std::size_t>(backend.size());
  const Fingerprint mine(operation, call.sequence());
  std::vector<std::string> all(n, std::string(longest, '\0'));
  std::vector<Bytes> places;
  places.reserve(n);
  for (auto& each : all) places.push_back(std::as_writable_bytes(std::span(each)));
  backend.all_gather(std::as_bytes(std::span(mine.text)), places, call);
  // All compare with rank 0, so that all see the same.
  for (std::size_t rank = 1; rank < n; ++rank) {
    if (all[rank] == all[0]) continue;
    throw MismatchError(
        fmt::format("ranks disagree on {}: rank 0 called {}, rank {} called {}",
                    fmt::join(differences(all[0], all[rank]), ", "), readable(all[0]), rank, readable(all[rank])),
        {.op = std::string(to_string(call.op())), .sequence = call.sequence(), .rank = static_cast<int>(rank)});
  }
}

}  // namespace cohort
