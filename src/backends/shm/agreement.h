// SPDX-License-Identifier: BSD-3-Clause
//
// How the survivors of a group agree on who is left, in the memory of the group that broke.
//
// On one host death is known for certain (a pidfd says so), and memory survives its writers: that makes agreement easy
// where it is hard over a network. It goes in rounds, one for each further death:
//
//   1. Each survivor votes for the round and waits until every rank has voted or is dead.
//   2. It writes a proposal, who voted and lives, and tries to make it the round's decision by compare-and-swap. The
//      first one wins, and all take the winner's proposal.
//   3. The survivors build the new group. Each says when it is ready; whoever sees all ready tries to make the round
//      final, whoever sees one of them die tries to call it off: again a compare-and-swap, again all follow it.
//   4. Called off: next round. At most one round for each rank.
//
// Round numbers stamp everything, so nothing is ever reset.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cohort::shm {

inline constexpr std::size_t ticket_bytes = 256;

/// Views of the agreement's memory for n ranks.
class AgreementBoard {
 public:
  AgreementBoard(std::byte* base, std::size_t n) : base_(base), n_(n) {}

  static std::size_t bytes_for(std::size_t n) {
    return (3 * n + 2 * rounds(n) + n * n) * sizeof(std::uint32_t) + n * ticket_bytes;
  }
  static std::size_t rounds(std::size_t n) { return n + 1; }

  /// The last round a rank voted for, and the last for which it is ready.
  std::atomic<std::uint32_t>& vote(std::size_t rank) const { return word(rank); }
  std::atomic<std::uint32_t>& ready(std::size_t rank) const { return word(n_ + rank); }
  /// The round for which a rank's ticket is written.
  std::atomic<std::uint32_t>& ticket_round(std::size_t rank) const { return word(2 * n_ + rank); }
  /// 1 + the rank whose proposal holds; 0: none yet.
  std::atomic<std::uint32_t>& winner(std::size_t round) const { return word(3 * n_ + round); }
  /// 0 open, 1 final, 2 called off.
  std::atomic<std::uint32_t>& verdict(std::size_t round) const { return word(3 * n_ + rounds(n_) + round); }
  /// round * 2 + whether `rank` stays, as `proposer` has it.
  std::atomic<std::uint32_t>& proposal(std::size_t proposer, std::size_t rank) const {
    return word(3 * n_ + 2 * rounds(n_) + proposer * n_ + rank);
  }
  char* ticket(std::size_t rank) const {
    return reinterpret_cast<char*>(base_ + (3 * n_ + 2 * rounds(n_) + n_ * n_) * sizeof(std::uint32_t)) +
           rank * ticket_bytes;
  }

 private:
  std::atomic<std::uint32_t>& word(std::size_t i) const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(base_)[i];
  }

  std::byte* base_;
  std::size_t n_;
};

inline std::size_t agreement_bytes(std::size_t n) {
  return AgreementBoard::bytes_for(n);
}

}  // namespace cohort::shm
