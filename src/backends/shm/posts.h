// SPDX-License-Identifier: BSD-3-Clause
//
// Posts: at the start of every collective, each rank posts what it is about to do and, for small operations, the data.
// A post of up to 32 bytes is one cache line, flag included, so that a small all-reduce costs each rank one line read
// from every other rank, which is the minimum.
//
// Every rank has a ring of `post_depth` slots that only it writes. The k-th operation of a group uses slot k modulo the
// depth, and the slot's flag becomes k. A slot may be written again once nobody reads it any more: a rank that has
// posted operation j has finished all operations before j, so slot k may be written when all ranks have posted at least
// k - depth + 1. Operations that wait for all ranks know this already. The root of a broadcast, which waits for nobody,
// checks it every half turn of the ring, and runs at most depth - 1 operations ahead of the slowest rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/shm/flags.h"

namespace cohort::shm {

inline constexpr std::uint32_t post_depth = 16;
inline constexpr std::size_t post_inline_bytes = 32;
inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

template <class Atomics>
struct alignas(cache_line) Post {
  Flag<Atomics> flag;
  /// The signature of the operation (description.h), and its number for reports. Relaxed atomics: a report may read
  /// them at any time.
  typename Atomics::template Atomic<std::uint64_t> word;
  typename Atomics::template Atomic<std::uint64_t> sequence;
  double number;  ///< the factor of a premul_sum; the size in bytes of this rank's piece of an all-gather
  std::array<std::byte, post_inline_bytes> payload;
};

/// Which operations this rank has seen the others post, from which it knows when a slot is free again.
///
/// `Board` provides the posts: `post(rank, k)` is that rank's slot for operation k. `WaitMonitor` is described in
/// flags.h; it is told which rank is awaited.
template <class Board>
class PostOrder {
 public:
  PostOrder(Board& board, int rank, int size) : board_(board), rank_(rank), size_(size) {}

  /// Starts the next operation and returns its number; this rank's slot is then free to be written.
  template <class WaitMonitor>
  std::uint32_t begin(WaitMonitor& monitor) {
    const auto k = ++operation_;
    if (!reached(free_until_, k)) {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) await_post(peer, k - post_depth / 2, monitor);
      }
      free_until_ = k + post_depth / 2 - 1;
    }
    return k;
  }

  template <class WaitMonitor>
  void await_post(int peer, std::uint32_t k, WaitMonitor& monitor) {
    monitor.waits_for(peer);
    await(board_.post(peer, k).flag, k, monitor);
  }

  /// Waits until all ranks have posted operation k.
  template <class WaitMonitor>
  void await_all_posts(std::uint32_t k, WaitMonitor& monitor) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) await_post(peer, k, monitor);
    }
    free_until_ = k + post_depth - 1;
  }

  std::uint32_t current() const { return operation_; }

 private:
  Board& board_;
  const int rank_;
  const int size_;
  std::uint32_t operation_ = 0;
  /// The last operation whose slot is known to be free. Initially the whole first turn of the ring is free.
  std::uint32_t free_until_ = post_depth;
};

}  // namespace cohort::shm
