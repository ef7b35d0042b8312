// SPDX-License-Identifier: BSD-3-Clause
//
// One collective in progress: its number, this rank's post and the posts of the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/shm/engine.h"
#include "backends/shm/protocol/wait_monitor.h"
#include "group/mismatch.h"

namespace cohort::shm {

/// The location of memory that other ranks cannot map (ordinary memory).
inline constexpr std::uint64_t nowhere = ~std::uint64_t{0};

/// Set in a post beside the operation's signature: this rank's memory lies where the others can access it.
inline constexpr std::uint64_t reachable_memory = free_signature_bit;

class Collective {
 public:
  // What every small operation goes through is inline: dozens of short calls would take longer than the flags.

  /// Throws if the group is broken.
  Collective(Engine& engine, const Operation& op, Call& call)
      : engine_(engine),
        call_(call),
        monitor_(engine, call, Engine::Wait::collective),
        word_(OpSignature::of(op).pack()),
        beside_word_(call.whole() != 0 ? call.whole() : op.layout) {
    engine_.check(call_);
    k_ = engine_.order_.begin();
    engine_.entered_.store(k_, std::memory_order_relaxed);
    engine_.sequence_.store(call.sequence(), std::memory_order_relaxed);
  }

  /// This rank's payload, to be written before publish(). Up to 32 bytes lie beside the flag.
  std::byte* payload(std::size_t bytes) const {
    auto& engine = engine_;
    return bytes <= post_inline_bytes ? engine.board_.post(engine.rank_, k_).payload.data()
                                      : engine.board_.payload(engine.rank_, k_);
  }
  /// For small operations, which are over when the posts are there.
  void post(PostDetail detail = {}) {
    auto& post = engine_.board_.post(engine_.rank_, k_);
    post.word.store(word_, std::memory_order_relaxed);
    post.beside_word.store(beside_word_, std::memory_order_relaxed);
    post.sequence.store(static_cast<std::uint32_t>(call_.sequence()), std::memory_order_relaxed);
    post.detail = detail;
    raise(post.flag, k_);
  }
  /// For operations that go on after the posts.
  void publish(bool is_reachable, PostDetail detail = {}) {
    if (is_reachable) word_ |= reachable_memory;
    post(detail);
    call_.waits();
  }

  /// Waits for the posts of all ranks and compares them, so that either all ranks go on with the same operation or all
  /// of them throw. Every collective calls it, on every rank.
  void await_all() {
    engine_.order_.await_all_posts(k_, monitor_);
    // All ranks have finished the operation before this one, so nobody reads what the next one writes.
    StdAtomics::will_write(&engine_.board_.post(engine_.rank_, k_ + 1));
    for (int rank = 0; rank < engine_.size_; ++rank) {
      if (rank != engine_.rank_) compare(rank);
    }
  }
  /// The payload of a rank's post; valid after await_all().
  const std::byte* payload_of(int rank, std::size_t bytes) const {
    return bytes <= post_inline_bytes ? engine_.board_.post(rank, k_).payload.data() : engine_.board_.payload(rank, k_);
  }
  /// Whether the memory of every rank can be accessed; valid after await_all().
  bool all_reachable() const;
  bool is_reachable(int rank) const {
    return (engine_.board_.post(rank, k_).word.load(std::memory_order_relaxed) & reachable_memory) != 0;
  }
  /// What a rank has said beside the signature; valid after await_all().
  const PostDetail& detail_of(int rank) const { return engine_.board_.post(rank, k_).detail; }
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
  void compare(int rank) {
    const auto& post = engine_.board_.post(rank, k_);
    const auto theirs = post.word.load(std::memory_order_relaxed);
    const auto beside = post.beside_word.load(std::memory_order_relaxed);
    // The ranks may differ in where their memory lies.
    if (((theirs ^ word_) & ~reachable_memory) == 0 && beside == beside_word_) return;
    report_difference(rank, theirs, beside);
  }
  [[noreturn]] void report_difference(int rank, std::uint64_t theirs, std::uint32_t beside);

  Engine& engine_;
  Call& call_;
  WaitMonitor monitor_;
  std::uint64_t word_;
  std::uint32_t beside_word_;
  std::uint32_t k_;
};

}  // namespace cohort::shm
