// SPDX-License-Identifier: BSD-3-Clause
//
// One collective in progress: its number, this rank's post and the posts of the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/shm/engine.h"
#include "backends/shm/wait_monitor.h"
#include "group/mismatch.h"

namespace cohort::shm {

/// The location of memory that other ranks cannot map (ordinary memory).
inline constexpr std::uint64_t nowhere = ~std::uint64_t{0};

/// Set in a post beside the operation's signature: this rank's memory lies where the others can access it.
inline constexpr std::uint64_t reachable_memory = free_signature_bit;

class Collective {
 public:
  /// Throws if the group is broken.
  Collective(Engine& engine, const Operation& op, Call& call);

  /// This rank's payload, to be written before publish(). Up to 32 bytes lie beside the flag.
  std::byte* payload(std::size_t bytes) const {
    auto& engine = engine_;
    return bytes <= post_inline_bytes ? engine.board_.post(engine.rank_, k_).payload.data()
                                      : engine.board_.payload(engine.rank_, k_);
  }
  void publish(bool is_reachable = false, double number = 1);

  /// Waits for the posts of all ranks and compares them, so that either all ranks go on with the same operation or all
  /// of them throw. Every collective calls it, on every rank.
  void await_all();
  /// The payload of a rank's post; valid after await_all().
  const std::byte* payload_of(int rank, std::size_t bytes) const {
    return bytes <= post_inline_bytes ? engine_.board_.post(rank, k_).payload.data() : engine_.board_.payload(rank, k_);
  }
  /// Whether the memory of every rank can be accessed; valid after await_all().
  bool all_reachable() const;
  bool is_reachable(int rank) const {
    return (engine_.board_.post(rank, k_).word.load(std::memory_order_relaxed) & reachable_memory) != 0;
  }
  /// The number that a rank published beside its post.
  double number_of(int rank) const { return engine_.board_.post(rank, k_).number; }
  /// Where the memory at the location that a rank published is mapped here; an error if the location is not in that
  /// rank's memory.
  std::byte* find(int rank, std::uint64_t location, std::size_t bytes);

  /// Copies out of a rank's ordinary memory; requires PeerMemory::reads_ordinary().
  void read(int rank, std::uint64_t address, void* to, std::size_t bytes);

  /// The value of the chunk flags before this operation, and how far the operation raises them.
  std::uint32_t chunk_base() const { return engine_.chunks_done_; }
  void chunks_done(std::uint32_t chunks) { engine_.chunks_done_ += chunks; }
  /// Returns when every rank has called it. It counts as one chunk.
  void meet();
  /// Makes sure that the pages of this rank's staging buffers are reserved.
  void need_stage();

  [[noreturn]] void mismatch(int rank, const std::string& text);

  WaitMonitor& monitor() { return monitor_; }

 private:
  void compare(int rank);

  Engine& engine_;
  Call& call_;
  WaitMonitor monitor_;
  std::uint64_t word_;
  std::uint32_t beside_word_;
  std::uint32_t k_;
};

}  // namespace cohort::shm
