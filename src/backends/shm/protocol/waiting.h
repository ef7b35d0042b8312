// SPDX-License-Identifier: BSD-3-Clause
//
// Whom each rank waits for. A rank whose wait has become long writes it on the board, so that a rank that gives up can
// follow the chain: the rank that it waits for may itself wait for another, and the last one is at fault.
//
// Nothing of this is in the path of an operation that does not wait long.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "backends/shm/protocol/board.h"

namespace cohort::shm {

/// What one rank waits for, in blocking operations of all its threads, and what the other ranks wait for.
class Waiting {
 public:
  Waiting(const Board& board, int rank);

  void begin(int awaited);
  /// Called every few milliseconds during a long wait: a rank that no longer does so is stopped and waits for nobody.
  void go_on();
  /// A rank that gave up is still said to wait for a while: the others, whose deadlines come next, want to know for
  /// whom.
  void end(int awaited, bool gave_up);

  /// The awaited rank, the rank that it waits for, and so on. The last one waits for nobody. If all wait for each
  /// other, the awaited rank alone.
  std::vector<int> chain(int awaited) const;

 private:
  void publish();
  std::vector<int> awaited_by(int rank) const;

  const Board& board_;
  const int rank_;
  std::mutex mutex_;
  struct Waits {
    int count = 0;
    std::int64_t gave_up_until = 0;  ///< until when this rank is still said to wait; milliseconds on the steady clock
  };
  std::vector<Waits> waits_;  ///< for each rank
};

/// One wait, which may become long.
class LongWait {
 public:
  explicit LongWait(Waiting& waiting) : waiting_(waiting) {}
  ~LongWait() {
    if (awaited_ >= 0) [[unlikely]]
      waiting_.end(awaited_, gave_up_);
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  /// Called every few milliseconds from the moment on at which the wait is long. It is not published for whom a rank
  /// waits that waits for any of them (-1).
  void goes_on(int awaited);
  void gave_up() { gave_up_ = true; }

 private:
  Waiting& waiting_;
  int awaited_ = -1;
  bool gave_up_ = false;
};

/// ", which waits for rank 0, which waits for rank 3": what follows the name of the first rank of a chain.
std::string describe_rest(const std::vector<int>& chain);

}  // namespace cohort::shm
