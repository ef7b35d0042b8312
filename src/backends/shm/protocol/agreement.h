// SPDX-License-Identifier: BSD-3-Clause
//
// How the survivors of a group agree on which ranks are left, using the memory of the group that broke.
//
// On one host, the death of a process is known for certain (through a pidfd), and shared memory outlives the processes
// that wrote to it. Both make agreement easy where it is hard over a network. Agreement proceeds in rounds, with one
// more round for each further death:
//
//   1. Each survivor votes for the round and waits until every rank has voted or is dead.
//   2. It writes a proposal (the ranks that voted and are alive) and tries to make it the round's decision by
//      compare-and-swap. The first to succeed wins, and all survivors adopt the winner's proposal.
//   3. The survivors build the new group, and each announces when it is ready. A survivor that sees all of them ready
//      tries to make the round final; one that sees a member die tries to call the round off. This is again decided by
//      a compare-and-swap whose result all follow.
//   4. If the round was called off, the next round begins. There is at most one round per rank.
//
// Every value carries its round number, so nothing is ever reset.
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

  /// The last round a rank voted for, and the last round for which it is ready.
  std::atomic<std::uint32_t>& vote(std::size_t rank) const { return word(rank); }
  std::atomic<std::uint32_t>& ready(std::size_t rank) const { return word(n_ + rank); }
  /// The round for which a rank's ticket is written.
  std::atomic<std::uint32_t>& ticket_round(std::size_t rank) const { return word(2 * n_ + rank); }
  /// 1 + the rank whose proposal was adopted; 0 while there is none.
  std::atomic<std::uint32_t>& winner(std::size_t round) const { return word(3 * n_ + round); }
  /// 0: open, 1: final, 2: called off.
  std::atomic<std::uint32_t>& outcome(std::size_t round) const { return word(3 * n_ + rounds(n_) + round); }
  /// round * 2, plus 1 if `rank` stays in the group according to `proposer`.
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
