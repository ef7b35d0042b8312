// SPDX-License-Identifier: BSD-3-Clause
#include "group/mismatch.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/rank_index.h"

namespace cohort {

namespace {

// The bits of the packed word, from the lowest: 5 for op, 4 for dtype, 4 for reduction, 1 free, 14 for root, 36 for
// bytes.
constexpr unsigned dtype_at = 5;
constexpr unsigned reduce_at = 9;
constexpr unsigned root_at = 14;
constexpr unsigned bytes_at = 28;
constexpr std::uint64_t root_mask = 0x3fffU;
constexpr std::uint64_t most_bytes = (std::uint64_t{1} << 36U) - 1;

bool reduces(OpType op) {
  return op == OpType::all_reduce || op == OpType::reduce || op == OpType::reduce_scatter;
}
bool has_root(OpType op) {
  return op == OpType::reduce || op == OpType::broadcast || op == OpType::gather || op == OpType::scatter;
}

/// For operations where every rank knows the sizes of all pieces, so that lists of different sizes can be
/// distinguished.
template <class Pieces>
void add_pieces(OpSignature& signature, const Pieces& pieces) {
  std::uint32_t hash = 0;
  bool are_equal = true;
  for (const auto& piece : pieces) {
    are_equal = are_equal && piece.size() == pieces[0].size();
    signature.bytes += piece.size();
    hash = hash * 31 + static_cast<std::uint32_t>(piece.size() ^ piece.size() >> 32U);
  }
  // Equal pieces never look like others: all that can collide is two different lists of unequal ones.
  constexpr std::uint32_t unequal = (root_mask + 1) / 2;
  signature.root = are_equal ? 0 : static_cast<int>(unequal | ((hash ^ hash >> 14U) & (unequal - 1)));
}

}  // namespace

OpSignature OpSignature::of(const Operation& op) {
  OpSignature signature{.op = op.type, .dtype = op.dtype, .layout = op.layout};
  switch (op.type) {
    case OpType::all_reduce:
      signature.reduce = op.reduce.kind();
      signature.bytes = op.in().size();
      break;
    case OpType::reduce:
      signature.reduce = op.reduce.kind();
      signature.bytes = op.in().size();
      signature.root = op.root;
      break;
    case OpType::broadcast:
    case OpType::scatter:
      signature.bytes = op.out().size();
      signature.root = op.root;
      break;
    case OpType::gather:
      signature.bytes = op.in().size();
      signature.root = op.root;
      break;
    case OpType::all_gather:
    case OpType::all_gather_single:
      signature.op = OpType::all_gather;
      add_pieces(signature, op.outs);
      break;
    case OpType::reduce_scatter:
    case OpType::reduce_scatter_single:
      signature.op = OpType::reduce_scatter;
      signature.reduce = op.reduce.kind();
      add_pieces(signature, op.ins);
      break;
    case OpType::all_to_all_single:
      signature.op = OpType::all_to_all;
      break;
    default:
      break;
  }
  return signature;
}

std::uint64_t OpSignature::pack() const {
  return static_cast<std::uint64_t>(op) | static_cast<std::uint64_t>(dtype) << dtype_at |
         static_cast<std::uint64_t>(reduce) << reduce_at | (static_cast<std::uint64_t>(root) & root_mask) << root_at |
         std::min(bytes, most_bytes) << bytes_at;
}

OpSignature OpSignature::unpack(std::uint64_t word) {
  return {.op = static_cast<OpType>(word & 31U),
          .dtype = static_cast<DType>(word >> dtype_at & 15U),
          .reduce = static_cast<ReduceOp::Kind>(word >> reduce_at & 15U),
          .root = static_cast<int>(word >> root_at & root_mask),
          .bytes = word >> bytes_at};
}

std::string to_string(const OpSignature& signature) {
  std::vector<std::string> parts;
  if (reduces(signature.op)) parts.emplace_back(to_string(signature.reduce));
  if (signature.op != OpType::barrier) parts.emplace_back(to_string(signature.dtype));
  if (signature.bytes > 0) parts.push_back(fmt::format("{} bytes", signature.bytes));
  if (has_root(signature.op)) parts.push_back(fmt::format("root {}", signature.root));
  if (signature.layout != 0)
    parts.push_back(fmt::format("memory not in row-major order, layout {:08x}", signature.layout));
  return fmt::format("{}({})", to_string(signature.op), fmt::join(parts, ", "));
}

std::string describe_mismatch(int rank, const std::string& called, int other, const std::string& other_called) {
  return fmt::format("rank {} called {} where rank {} called {}", rank, called, other, other_called);
}

std::string describe_wrong_message(int sender, std::uint64_t sent, std::uint32_t sent_type, int receiver,
                                   std::uint64_t expected, std::uint32_t expected_type) {
  const auto text = [](std::uint64_t bytes, std::uint32_t type) {
    return fmt::format("{} bytes of {}{}", bytes, to_string(static_cast<DType>(type & 0xffU)),
                       type > 0xffU ? fmt::format(" (not in row-major order, layout {:06x})", type >> 8U) : "");
  };
  return fmt::format("rank {} sent {} where rank {} expects {}", sender, text(sent, sent_type), receiver,
                     text(expected, expected_type));
}

// --- debug level detail

namespace {

constexpr std::size_t longest = 480;

/// Whether shapes may legitimately differ between ranks.
bool has_own_shapes(const Operation& op) {
  const auto differ = [](const auto& pieces) {
    return std::ranges::any_of(pieces, [&](const auto& piece) { return piece.size() != pieces[0].size(); });
  };
  switch (op.type) {
    case OpType::all_to_all:
    case OpType::all_to_all_single:
    case OpType::barrier:
      return true;
    case OpType::all_gather:
      return differ(op.outs);
    case OpType::reduce_scatter:
      return differ(op.ins);
    default:
      return false;
  }
}

template <class Buffers>
void describe(std::vector<std::string>& shapes, std::vector<std::string_view>& dtypes, const Buffers& buffers) {
  for (const ConstBuffer& buffer : buffers) {
    shapes.push_back(buffer.is_contiguous()
                         ? to_string(buffer.sizes())
                         : fmt::format("{} strides {}", to_string(buffer.sizes()), to_string(buffer.strides())));
    dtypes.push_back(to_string(buffer.dtype()));
  }
}

/// The aspects are compared one by one, so that the error can say which of them differ.
constexpr std::array<const char*, 6> aspects{"sequence number", "operation", "reduction", "root", "dtypes", "shapes"};

/// The aspects one after another, cut off at `longest` characters.
std::string full_description(const Operation& op, std::uint64_t sequence) {
  std::vector<std::string> shapes;
  std::vector<std::string_view> dtypes;
  if (!op.members.empty()) {
    // Only the sizes in bytes of a member's memory are known, because its buffers may not exist any more when it runs.
    for (const auto& member : op.members) {
      dtypes.push_back(to_string(member.dtype));
      shapes.push_back(to_string(OpSignature::of(member)));
    }
  } else {
    // On ranks other than the root, a gather has no outputs and a scatter has no inputs; an uneven gather is an
    // all_to_all.
    if (op.type != OpType::scatter) describe(shapes, dtypes, op.input_buffers);
    if (op.type != OpType::gather && op.type != OpType::all_to_all) describe(shapes, dtypes, op.output_buffers);
    if (has_own_shapes(op)) shapes = {"any"};
  }
  auto text = fmt::format("#{}|{}|{}|root {}|{}|{}", sequence, to_string(op.type), to_string(op.reduce), op.root,
                          fmt::join(dtypes, ","), fmt::join(shapes, ","));
  text.resize(longest);
  return text;
}

std::string readable(std::string text) {
  text.resize(std::min(text.find('\0'), text.size()));
  std::ranges::replace(text, '|', ' ');
  return text;
}

std::vector<std::string> differences(std::string_view a, std::string_view b) {
  std::vector<std::string> found;
  for (const auto* const aspect : aspects) {
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

void compare_on_all_ranks(Backend& backend, const Operation& op, Call& call) {
  const auto n = index_of(backend.size());
  const auto mine = full_description(op, call.sequence());
  std::vector<std::string> all(n, std::string(longest, '\0'));
  std::vector<Bytes> places;
  places.reserve(n);
  for (auto& each : all) places.push_back(std::as_writable_bytes(std::span(each)));
  backend.perform(Operation::all_gather(std::as_bytes(std::span(mine)), places), call);
  // All ranks compare with rank 0, so that all of them report the same difference.
  for (std::size_t rank = 1; rank < n; ++rank) {
    if (all[rank] == all[0]) continue;
    throw MismatchError(
        fmt::format("ranks disagree on {}: rank 0 called {}, rank {} called {}",
                    fmt::join(differences(all[0], all[rank]), ", "), readable(all[0]), rank, readable(all[rank])),
        {.op = std::string(to_string(call.op())), .sequence = call.sequence(), .rank = static_cast<int>(rank)});
  }
}

}  // namespace cohort
