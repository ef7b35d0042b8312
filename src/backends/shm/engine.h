// SPDX-License-Identifier: BSD-3-Clause
//
// One rank of one group of ranks that share memory, be they processes (shm) or threads (thread): what its collectives
// and messages stand on, and how it fails.
//
// Each collective starts with a post (posts.h). What follows depends on size and memory:
//   small      the data is in the post
//   direct     memory of the group: ranks work on each other's memory and copy nothing more than asked for
//   staged     ordinary memory: chunks through staging buffers (pipeline.h)
// Each algorithm is a file: all_reduce.cpp, reduce_scatter.cpp, broadcast.cpp, all_gather.cpp, gather_scatter.cpp,
// all_to_all.cpp, barrier.cpp. docs/algorithms.md has the cost of each.
#pragma once

#include <cohort/backend.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/shm/auto_tuner.h"
#include "backends/shm/board.h"
#include "backends/shm/failure.h"
#include "backends/shm/liveness.h"
#include "backends/shm/peer_memory.h"
#include "backends/shm/posts.h"

namespace cohort::shm {

/// How to wait; see wait_monitor.h.
struct WaitPolicy {
  /// Looks at a flag before yielding the processor: none where ranks outnumber processors.
  std::uint32_t spins = 0;
};

struct EngineParts {
  std::string name{};  ///< of the backend, for errors
  std::string group{};
  Board board;
  int rank = 0;
  WaitPolicy policy{};
  Liveness liveness{};
  std::unique_ptr<PeerMemory> peer_memory{};
};

class Engine {
 public:
  explicit Engine(EngineParts parts);
  /// Tells the others that this rank has left.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Board& board() const { return board_; }
  PeerMemory& peer_memory() const { return *peer_memory_; }
  /// Used by one collective at a time.
  AutoTuner& auto_tuner() { return auto_tuner_; }
  const WaitPolicy& policy() const { return policy_; }
  const std::string& name() const { return name_; }
  const std::string& group() const { return group_; }

  /// Breaks the group for everybody, unless it is broken already; throws what it is broken by.
  [[noreturn]] void fail(const Failure& failure, const Call& call);
  /// Throws if the group is broken.
  void check(const Call& call) const;
  /// Why waiting for `awaited` is in vain: it has died or left, or (in a collective) another has died that is not in it
  /// yet. A message from any rank (-1) is in vain as soon as one has died. What it did before may have arrived
  /// meanwhile: look once more before believing it. A system call.
  enum class Wait : std::uint8_t { collective, message };
  std::optional<Failure> trouble(int awaited, Wait wait);
  std::vector<int> dead_ranks();
  /// "waits for rank 2, which is in broadcast #6; ...": who is where, for errors.
  std::string describe_progress(int awaited) const;
  /// Who holds up the collective: a rank that is not in it yet, else the one that has used the fewest chunks; `awaited`
  /// if no other is behind it.
  int furthest_behind(int awaited) const;
  ErrorContext context(const Call& call) const;

 private:
  friend class Collective;

  /// The last operation a rank has posted; 0: none.
  std::uint32_t last_posted(int rank) const;
  /// Whether a rank has come as far as this one.
  bool is_in_step(int rank) const;

  std::string name_;
  std::string group_;
  Board board_;
  const int rank_;
  const int size_;
  const WaitPolicy policy_;
  std::mutex liveness_mutex_;
  Liveness liveness_;
  std::unique_ptr<PeerMemory> peer_memory_;
  AutoTuner auto_tuner_;

  PostOrder<Board> order_;
  std::atomic<std::uint32_t> entered_{0};  ///< the collective this rank is or was in last, for other threads' reports
  std::uint32_t chunks_done_ = 0;          ///< what all ranks' chunk flags have reached
  bool has_stage_ = false;
};

}  // namespace cohort::shm
