// SPDX-License-Identifier: BSD-3-Clause
//
// Posts: at the start of every collective, each rank posts what it is about to do and, for small operations, the data.
// A post of up to 32 bytes is one cache line, flag included, so that a small all-reduce costs each rank one line read
// from every other rank, which is the minimum.
//
// Every rank waits for the posts of all others before it leaves an operation, also if it takes no data from them: only
// then does it know that all ranks called the same operation (mismatch.h).
//
// Every rank has two slots that only it writes. The k-th operation of a group uses slot k modulo 2, and the slot's flag
// becomes k. The slot may then be written again without further waiting: a rank that posts operation k + 2 has seen all
// others post k + 1, and a rank that has posted k + 1 has finished operation k and reads its posts no more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/shm/auto_tuner.h"
#include "backends/shm/protocol/flags.h"

namespace cohort::shm {

inline constexpr std::uint32_t post_depth = 2;
inline constexpr std::size_t post_inline_bytes = 32;
inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

/// How the pieces that a rank posts for the others lie in its payload.
struct PostedPieces {
  enum class Are : std::uint32_t {
    even,    ///< one after another, each of `bytes` bytes
    uneven,  ///< one after another, behind a table of their sizes
    absent,  ///< they are too large for the post
  };
  Are are;
  std::uint32_t bytes;
};

/// What a rank says beside the signature. Which member it is follows from the operation, on which all ranks agree
/// before any of them reads it. They share one word, because the payload lies in the same cache line.
union PostDetail {
  double factor;        ///< reductions with premul_sum: by how much this rank's values count
  AutoTuner::Way way;   ///< other transfers: how rank 0 wants ordinary memory to be moved (tuned_transfer.h)
  PostedPieces pieces;  ///< pieces in posts whose sizes the signature does not tell: all-gather, all-to-all
};
static_assert(sizeof(PostDetail) == sizeof(std::uint64_t));

template <class Atomics>
struct alignas(cache_line) Post {
  Flag<Atomics> flag;
  /// The signature of the operation (mismatch.h): the packed word, and a digest of what the word has no room for. And
  /// the low half of its number, for reports. Relaxed atomics: a report may read them at any time.
  typename Atomics::template Atomic<std::uint64_t> word;
  typename Atomics::template Atomic<std::uint32_t> beside_word;
  typename Atomics::template Atomic<std::uint32_t> sequence;
  PostDetail detail;
  std::array<std::byte, post_inline_bytes> payload;
};

/// Numbers the operations of a group and waits for the others' posts.
///
/// `Board` provides the posts: `post(rank, k)` is that rank's slot for operation k. `WaitMonitor` is described in
/// flags.h; it is told which rank is awaited.
template <class Board>
class PostOrder {
 public:
  PostOrder(Board& board, int rank, int size) : board_(board), rank_(rank), size_(size) {}

  /// Starts the next operation and returns its number; this rank's slot is then free to be written.
  std::uint32_t begin() { return ++operation_; }

  /// Waits until all ranks have posted operation k.
  template <class WaitMonitor>
  void await_all_posts(std::uint32_t k, WaitMonitor& monitor) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      monitor.waits_for(peer);
      await(board_.post(peer, k).flag, k, monitor);
    }
  }

 private:
  Board& board_;
  const int rank_;
  const int size_;
  std::uint32_t operation_ = 0;
};

}  // namespace cohort::shm
