// SPDX-License-Identifier: BSD-3-Clause
//
// The MPI of this process: initialised once, finalised at exit if that was ours to do, and locked where MPI asks for
// one call at a time.
#pragma once

#include <cohort/backend.h>
#include <cohort/deadline.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backends/mpi/engine_interface.h"
#include "core/turn.h"

namespace cohort::mpi {

class Runtime {
 public:
  /// Of a test double; the process's own is of_process().
  explicit Runtime(Library& library) : library_(library) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() = default;

  /// Loads the module of the MPI that this process speaks and initialises it, the first time. A ValueError says what is
  /// missing, an OperationTimeoutError that other processes of the job have not come.
  static Runtime& of_process(Deadline deadline);

  /// Respects what the program did itself. A ValueError where its thread level is too low for us.
  void start(Deadline deadline);
  /// What the exit of the process does: finalises what start() initialised, unless something was left behind.
  void finish();

  Library& library() { return library_; }
  bool is_serialized() const noexcept { return level_.load(std::memory_order_relaxed) == ThreadLevel::serialized; }
  int largest_tag() const noexcept { return largest_tag_; }

  /// To be held during each call of the library.
  class Held {
   public:
    Held() = default;
    /// An OperationTimeoutError if another call takes longer than that.
    Held(Turn& turns, Deadline deadline);
    explicit operator bool() const { return holder_.has_value(); }

   private:
    std::optional<Turn::Holder> holder_{};
  };
  /// Costs nothing unless MPI takes one call at a time; then a call that makes a group may keep it for long.
  Held turn(Deadline deadline) { return is_serialized() ? Held(turns_, deadline) : Held(); }
  Held turn(const Call& call) {
    if (!is_serialized()) [[likely]]
      return {};
    Call mine = call;
    return {turns_, mine.deadline()};
  }

  /// Runs what may block on a thread of its own. False: not done by the deadline; the thread is left as it is, since
  /// MPI cannot be told to stop, and so must be whatever `blocking` uses.
  bool run_bounded(std::function<void()> blocking, Deadline deadline);

  /// An operation is under way that nobody waits for any more. What it uses stays, and MPI is not finalised.
  void leave_behind(std::shared_ptr<const void> what);
  bool has_left_behind() const noexcept { return has_left_behind_.load(); }

  /// The number of our own operation, made when it is first asked for.
  Op own_op(std::size_t index, Combine combine);

 private:
  void accept(ThreadLevel level, bool is_ours);

  Library& library_;
  Turn start_turn_;
  bool is_started_ = false;
  bool is_lost_ = false;  // MPI_Init runs on a thread that nobody waits for
  bool is_ours_ = false;
  int pid_ = 0;
  int largest_tag_ = 32767;
  std::atomic<ThreadLevel> level_{ThreadLevel::single};
  Turn turns_;
  std::atomic<bool> has_left_behind_{false};
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> left_behind_{};
  std::vector<std::pair<std::size_t, Op>> own_ops_{};
};

/// Of the threads that run_bounded() left, joins those that have ended; says how many have not.
std::size_t join_late_threads();

}  // namespace cohort::mpi
