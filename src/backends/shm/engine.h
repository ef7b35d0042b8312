// SPDX-License-Identifier: BSD-3-Clause
//
// The shared-memory engine: one rank of one group of ranks that share memory, whether they are processes (shm) or
// threads (thread). Its collectives and messages are built on it, and it defines how the rank fails.
//
// Each collective starts with a post (posts.h). What follows depends on the size and on the memory:
//   small      the data is in the post
//   direct     memory of the group: ranks work on each other's memory, without any further copy
//   staged     ordinary memory: chunks pass through staging buffers (pipeline.h)
// The algorithms are in collectives. docs/algorithms.md gives the cost of each.
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

#include "backends/common/leave_at_exit.h"
#include "backends/shm/auto_tuner.h"
#include "backends/shm/liveness.h"
#include "backends/shm/memory/peer_memory.h"
#include "backends/shm/protocol/board.h"
#include "backends/shm/protocol/failure.h"
#include "backends/shm/protocol/posts.h"
#include "backends/shm/protocol/waiting.h"

namespace cohort::shm {

/// How to wait; see wait_monitor.h.
/// The same on all ranks.
struct WaitPolicy {
  /// How often a flag is read before the processor is yielded: 0 where ranks outnumber processors.
  std::uint32_t spins = 0;
  bool has_own_cpus() const { return spins > 0; }
};

struct EngineParts {
  std::string name{};  ///< name of the backend, for errors
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
  Waiting& waiting() { return waiting_; }
  const std::string& name() const { return name_; }
  const std::string& group() const { return group_; }

  /// Breaks the group for all ranks, unless it is broken already, and throws the failure that broke it.
  [[noreturn]] void fail(const Failure& failure, const Call& call);
  /// Throws if the group is broken.
  void check(const Call& call) const {
    if (has_failed(board_)) [[unlikely]]
      refuse(call);
  }
  /// The reason why waiting for `awaited` is in vain, if there is one: it has died or left, or (in a collective)
  /// another rank died before entering it. Waiting for a message from any rank (-1) is in vain as soon as one rank has
  /// died. What the dead rank did earlier may have arrived in the meantime, so the caller checks once more before
  /// acting on the answer. Costs a system call.
  enum class Wait : std::uint8_t { collective, message };
  std::optional<Failure> find_failure(int awaited, Wait wait);
  std::vector<int> dead_ranks();
  /// "missing: rank 2; rank 2 last called broadcast #6": where the late ranks are, for errors.
  std::string describe_progress(int awaited) const;
  /// The rank that holds up the collective: one that has not entered it yet or, if all have, the one that has used the
  /// fewest chunks; `awaited` if no other rank is behind it.
  int furthest_behind(int awaited) const;
  ErrorContext context(const Call& call) const;

 private:
  friend class Collective;

  /// The last operation a rank has posted; 0 if none.
  std::uint32_t last_posted(int rank) const;
  /// Whether a rank has entered the operation this rank is in.
  bool is_in_step(int rank) const;
  bool has_left(int rank) const {
    return board_.info(rank).state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(RankState::left);
  }
  void leave() noexcept;
  [[noreturn]] void refuse(const Call& call) const;

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
  Waiting waiting_{board_, rank_};

  PostOrder<Board> order_;
  std::atomic<std::uint32_t> entered_{0};   ///< the collective this rank is in, or was in last; other threads report it
  std::atomic<std::uint64_t> sequence_{0};  ///< the number of that collective among the group's, for reports
  std::uint32_t chunks_done_ = 0;           ///< the value that the chunk flags of all ranks have reached
  bool has_stage_ = false;
  mutable BrokenGroup broken_;
  LeaveAtExit at_exit_;  ///< last, because it uses the board
};

}  // namespace cohort::shm
