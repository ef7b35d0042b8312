// SPDX-License-Identifier: BSD-3-Clause
//
// All-to-all.
//
//   small    the pieces for all ranks go with their rank's post.                         one wait for each rank
//   larger   a second round, which is an exchange (exchange.h) with one lane for every other rank. All ranks take it if
//            the pieces of one of them do not fit into its post.
//
// Only the two ranks of a piece know its size, which no signature covers. If they disagree, the others must not leave
// before they know it. So every rank publishes its balance: the sizes of the pieces it sends, each with a weight of its
// own, less those it expects. The balances of all ranks add up to 0 if all pairs agree; if not, then only by a chance
// of 2^-64. The ranks of a pair that disagrees find out when they look at their pieces, and the rest wait for them.
#include <fmt/format.h>

#include "backends/shm/backend.h"
#include "backends/shm/collectives/exchange.h"
#include "core/rank_index.h"
#include "reduce/copy.h"

namespace cohort::shm {

namespace {

std::uint64_t weight(int from, int to) {
  return digest_of({static_cast<std::uint64_t>(from) << 32U | static_cast<std::uint64_t>(to)});
}

class SmallAllToAll {
 public:
  SmallAllToAll(Engine& engine, const Operation& op, Call& call)
      : engine_(engine), ins_(op.ins), outs_(op.outs), collective_(engine, op, call) {}

  /// Returns whether the pieces of all ranks were in their posts and have been taken.
  bool exchange() {
    post();
    collective_.await_all();
    std::uint64_t sum = 0;
    bool are_all_posted = true;
    for (int from = 0; from < engine_.size(); ++from) {
      std::uint64_t balance = 0;
      std::memcpy(&balance, payload_of(from), sizeof(balance));
      sum += balance;
      const bool are_posted = pieces_of(from).are != Are::absent;
      are_all_posted = are_all_posted && are_posted;
      if (from != engine_.rank() && are_posted) take(from);
    }
    is_balanced_ = sum == 0;
    if (are_all_posted && !is_balanced_) await_the_error();
    return are_all_posted;
  }
  bool is_balanced() const { return is_balanced_; }
  /// For ranks whose own pieces are right, when those of others are not.
  void await_the_error() { collective_.meet(); }

 private:
  using Are = PostedPieces::Are;
  using Size = std::uint32_t;

  const PostedPieces& pieces_of(int from) const { return collective_.detail_of(from).pieces; }
  std::size_t table_bytes() const { return sizeof(std::uint64_t) + ins_.size() * sizeof(Size); }
  /// The size of a payload: the balance, and the pieces if they are there. Up to the inline size it lies beside the
  /// flag; with a table it never does, so that the others know where.
  std::size_t payload_bytes(const PostedPieces& pieces) const {
    if (pieces.are == Are::absent) return sizeof(std::uint64_t);
    return pieces.are == Are::uneven ? post_bytes : sizeof(std::uint64_t) + pieces.bytes * (ins_.size() - 1);
  }
  const std::byte* payload_of(int from) const { return collective_.payload_of(from, payload_bytes(pieces_of(from))); }

  void post() {
    const auto own = index_of(engine_.rank());
    std::size_t total = 0;
    std::uint64_t balance = 0;
    const auto first = ins_[own == 0 ? ins_.size() - 1 : 0].size();
    bool is_even = true;
    for (std::size_t i = 0; i < ins_.size(); ++i) {
      if (i == own) continue;
      const auto peer = static_cast<int>(i);
      balance += weight(engine_.rank(), peer) * ins_[i].size() - weight(peer, engine_.rank()) * outs_[i].size();
      total += ins_[i].size();
      is_even = is_even && ins_[i].size() == first;
    }
    const bool fits = total <= post_bytes - table_bytes();
    const auto are = !fits ? Are::absent : is_even ? Are::even : Are::uneven;
    const PostedPieces pieces{.are = are, .bytes = are == Are::even ? static_cast<Size>(first) : 0};
    auto* to = collective_.payload(payload_bytes(pieces));
    std::memcpy(to, &balance, sizeof(balance));
    to += sizeof(balance);
    for (std::size_t i = 0; fits && !is_even && i < ins_.size(); ++i, to += sizeof(Size)) {
      const auto size = static_cast<Size>(i == own ? 0 : ins_[i].size());
      std::memcpy(to, &size, sizeof(size));
    }
    for (std::size_t i = 0; fits && i < ins_.size(); ++i) {
      if (i == own) continue;
      reduce::copy(to, ins_[i].data(), ins_[i].size());
      to += ins_[i].size();
    }
    collective_.post({.pieces = pieces});
  }

  void take(int from) {
    const auto out = outs_[index_of(from)];
    const auto* const payload = payload_of(from);
    const auto own = index_of(engine_.rank());
    const auto pieces = pieces_of(from);
    std::size_t at = sizeof(std::uint64_t);
    std::size_t offered = 0;
    if (pieces.are == Are::uneven) {
      at = table_bytes();
      for (std::size_t i = 0; i <= own; ++i) {
        Size size = 0;
        std::memcpy(&size, payload + sizeof(std::uint64_t) + i * sizeof(Size), sizeof(size));
        if (i < own) at += size;
        offered = size;
      }
    } else {
      offered = pieces.bytes;
      at += offered * (own - (index_of(from) < own ? 1 : 0));
    }
    if (offered != out.size())
      collective_.mismatch(from, describe_wrong_piece(from, offered, engine_.rank(), out.size()));
    reduce::copy(out.data(), payload + at, offered);
  }

  Engine& engine_;
  const std::span<const ConstBytes> ins_;
  const std::span<const Bytes> outs_;
  Collective collective_;
  bool is_balanced_ = true;
};

}  // namespace

void LocalBackend::all_to_all(const Operation& op, Call& call) {
  const auto own = index_of(rank());
  copy_own(op.outs[own], op.ins[own]);
  SmallAllToAll small(engine_, op, call);
  if (small.exchange()) return;
  Collective collective(engine_, op, call);
  Exchange exchange(engine_, collective, op.ins, index_of(size()), op.outs);
  exchange.post();
  if (!small.is_balanced()) small.await_the_error();
  exchange.move();
}

}  // namespace cohort::shm
