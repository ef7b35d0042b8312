// SPDX-License-Identifier: BSD-3-Clause
//
// The MPI of this process: which one it is, initialised once, finalised at exit if Cohort initialised it, and locked
// where MPI allows only one call at a time.
#pragma once

#include <cohort/backend.h>
#include <cohort/deadline.h>
#include <cohort/env.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/mpi/engine_interface.h"
#include "core/timed_mutex.h"

namespace cohort::mpi {

/// Which MPI this process uses. There is no choice: it is the one that the program has initialised or, if it has not,
/// the one whose launcher started the process, since no MPI understands the launcher of another.
enum class Flavour { openmpi, mpich };

/// "openmpi", "mpich": as in COHORT_MPI and in the names of the modules.
std::string_view to_string(Flavour flavour);
/// "Open MPI", "MPICH"
std::string_view title_of(Flavour flavour);
/// The package to install.
std::string_view package_of(Flavour flavour);

/// From the text of MPI_Get_library_version; nullopt if it is neither. Libraries that share MPICH's binary interface
/// count as MPICH.
std::optional<Flavour> flavour_of_version(std::string_view version);

/// The MPI that the program was linked with, as far as the dynamic loader can tell. That alone says little: libtorch
/// may be linked with an MPI that the program does not use.
struct LoadedMpi {
  std::string version{};  ///< empty: there is none
  bool is_initialized = false;
};
LoadedMpi loaded_mpi();

/// If nothing tells which MPI it is, throws a ValueError that says how to start the program.
Flavour choose_flavour(const Env& env, const LoadedMpi& loaded);

class Runtime {
 public:
  /// For tests, with a test double; the process has of_process().
  explicit Runtime(Library& library) : library_(library) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() = default;

  /// Loads the module of the MPI that this process uses and initialises it, the first time. Throws a ValueError that
  /// says what is missing, or an OperationTimeoutError if other processes of the job have not called MPI_Init.
  static Runtime& of_process(Deadline deadline);

  /// Leaves MPI as it is if the program initialised it. Throws a ValueError if its thread level is too low.
  void start(Deadline deadline);
  /// Called at exit: finalises MPI if start() initialised it, unless an operation was left behind.
  void finish();

  Library& library() { return library_; }
  bool is_serialized() const noexcept { return level_.load(std::memory_order_relaxed) == ThreadLevel::serialized; }
  int largest_tag() const noexcept { return largest_tag_; }

  /// Held during each call of the library.
  class Held {
   public:
    Held() = default;
    /// Throws an OperationTimeoutError if another call holds it until the deadline.
    Held(TimedMutex& turns, Deadline deadline);
    explicit operator bool() const { return holder_.has_value(); }

   private:
    std::optional<TimedLock> holder_{};
  };
  /// Costs nothing unless MPI allows only one call at a time; then a call that makes a group may hold it for long.
  Held turn(Deadline deadline) { return is_serialized() ? Held(turns_, deadline) : Held(); }
  Held turn(const Call& call) {
    if (!is_serialized()) [[likely]]
      return {};
    Call mine = call;
    return {turns_, mine.deadline()};
  }

  /// Called for an operation that nobody waits for any more: what it uses is kept, and MPI is not finalised.
  void leave_behind(std::shared_ptr<const void> what);
  bool has_left_behind() const noexcept { return has_left_behind_.load(); }

  /// An operation of Cohort's own, created at its first use.
  Op own_op(std::size_t index, Combine combine);

 private:
  void accept(ThreadLevel level, bool is_ours);

  Library& library_;
  TimedMutex start_turn_;
  bool is_started_ = false;
  bool is_lost_ = false;  // MPI_Init missed its deadline and continues
  bool is_ours_ = false;
  int pid_ = 0;
  int largest_tag_ = 32767;
  std::atomic<ThreadLevel> level_{ThreadLevel::single};
  TimedMutex turns_;
  std::atomic<bool> has_left_behind_{false};
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> left_behind_{};
  std::vector<std::pair<std::size_t, Op>> own_ops_{};
};

/// Called by exactly these ranks of the world; `group` is the same on all of them and names no other group that is
/// being made. MPI's call cannot be interrupted: it runs on a thread of its own, which continues if the deadline
/// passes.
Communicator create_communicator(Runtime& runtime, const std::vector<int>& world_ranks, std::string_view group,
                                 Deadline deadline);

}  // namespace cohort::mpi
