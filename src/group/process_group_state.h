// SPDX-License-Identifier: BSD-3-Clause
//
// The state behind a ProcessGroup, which operations in progress share.
#pragma once

#include <cohort/backend.h>
#include <cohort/debug_level.h>
#include <cohort/process_group.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "group/collective_queue.h"
#include "group/group_recipe.h"
#include "group/op_record.h"
#include "group/point_to_point_progress.h"
#include "group/serial_executor.h"
#include "group/shrink_round.h"
#include "group/submit.h"
#include "group/work_state.h"
#include "observe/recorder.h"

namespace cohort {

/// The number of forks between the first process and this one. A group must not be used in a forked child.
inline std::atomic<std::uint32_t> forks{0};
/// Starts counting on the first call, and returns the count.
std::uint32_t fork_generation() noexcept;

struct detail::GroupState {
  static constexpr std::size_t device_types = 2;

  std::string id;
  int own_rank = 0;
  std::vector<int> global_ranks;
  std::atomic<std::chrono::milliseconds> timeout;
  DebugLevel debug = debug_level();
  const std::uint32_t generation = fork_generation();

  mutable std::mutex mutex;  ///< protects the members down to `retired`
  StorePtr store;
  std::string name;
  std::string description;
  std::optional<Device> bound_device;
  std::array<BackendPtr, device_types> backends;
  std::optional<DeviceType> default_type;
  std::string abort_reason;
  std::vector<Hook> pre_hooks;
  std::vector<Hook> post_hooks;
  std::vector<std::function<void(std::string_view)>> abort_hooks;
  std::unique_ptr<observe::GroupTrace> trace;
  std::shared_ptr<const GroupRecipe> recipe;  ///< null: the group cannot be made again

  std::vector<BackendPtr> retired;  ///< released, but another thread may still be using one

  /// The same backends, for code that takes no lock.
  std::array<std::atomic<Backend*>, device_types> fast{};
  std::atomic<Backend*> fast_default{nullptr};
  std::atomic<observe::GroupTrace*> fast_trace{nullptr};
  std::atomic<bool> has_hooks{false};
  /// Why operations are refused (shut down, aborted, released); null if they are not.
  std::atomic<const char*> closed{nullptr};
  std::atomic<bool> is_shut_down{false};  ///< the backends have been told so
  /// Whether abort() was called on this rank. Once it has been, no operation succeeds, whatever the backend says.
  std::atomic<bool> is_aborted{false};

  std::atomic<std::uint64_t> p2p_sequence{0};
  std::atomic<bool> has_dumped{false};  ///< whether the flight recorder has written a dump for a failure of this group
  int splits = 0;                       ///< only used by the collective whose turn it is
  std::atomic<std::uint64_t> monitored_barriers{0};
  ShrinkRound shrink_round;  ///< only used by shrink()

  // These members are last so that they are destroyed first: their threads end before the members that they use.
  std::shared_ptr<SerialExecutor> continuations = std::make_shared<SerialExecutor>("cohort-then");
  PointToPointProgress p2p_progress;
  CollectiveQueue collectives{"cohort-group"};

  std::optional<DeviceType> default_device_type() const {
    const std::lock_guard lock(mutex);
    return default_type;
  }
  /// Throws in a child that was forked after the group was made.
  void check_process(std::string_view what) const;
  void add_trace(int rank, int size, const std::string& backend);
  /// Waits for the operations in progress, which their deadlines bound, and returns whether they ended before this one.
  bool await_pending(Deadline deadline);
  /// The same for a user who has called `what`: throws an OperationTimeoutError.
  void wait_for_pending(std::string_view what, std::chrono::milliseconds limit);

  Backend& backend_for(const detail::SubmitOptions& options, OpType op) const {
    auto* const found = options.device ? fast[static_cast<std::size_t>(*options.device)].load(std::memory_order_acquire)
                                       : fast_default.load(std::memory_order_acquire);
    if (found == nullptr) refuse_device(options, op);
    return *found;
  }
  [[noreturn]] void refuse_device(const detail::SubmitOptions& options, OpType op) const;
  BackendPtr shared_backend(const Backend& backend) const;
  std::vector<BackendPtr> distinct_backends() const;
  std::chrono::milliseconds timeout_of(const detail::SubmitOptions& options) const {
    return options.timeout.duration_or(timeout.load(std::memory_order_relaxed));
  }
  ErrorContext context(OpType op) const { return {.group = id, .op = std::string(to_string(op))}; }
  /// Throws if the group takes no operations any more.
  void check_open(OpType op) const {
    if (closed.load(std::memory_order_acquire) != nullptr || generation != forks.load(std::memory_order_relaxed)) {
      refuse(op);
    }
  }
  [[noreturn]] void refuse(OpType op) const;
  /// Called when an operation has been performed. Throws if this rank has called abort() by now, although the peers may
  /// have completed the operation in the meantime. Costs a load.
  void check_not_aborted(const Call& call) const {
    if (is_aborted.load(std::memory_order_acquire)) [[unlikely]]
      std::rethrow_exception(how_it_ended(nullptr, call));
  }
  /// How an operation ended for the caller: an operation that ends after this rank has called abort(), with success
  /// (null) or with an error of the backend, ends with an AbortedError.
  std::exception_ptr how_it_ended(const std::exception_ptr& error, const Call& call) const;

  /// Runs `fn(sequence)` as the next collective: on this thread if the group is idle, otherwise on the queue's thread.
  /// Returns when it is done, and rethrows its exception.
  template <class Fn>
  void in_turn(Fn&& fn) {
    if (const auto sequence = collectives.try_enter()) {
      const QueueTurn held(collectives);
      return fn(*sequence);
    }
    Promise<void> done;
    collectives.enqueue([&](std::uint64_t sequence) {
      try {
        fn(sequence);
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
    done.future().value();
  }
  /// Runs `fn(backend, call)` in turn, as one operation of type `op`, with a flight-recorder entry and hooks.
  void run_in_turn(OpType op, Timeout timeout, const std::function<void(Backend&, Call&)>& fn);
};

/// Gives other parts of the library access to a group.
class GroupAccess {
 public:
  static Work submit(ProcessGroup& group, const Operation& op, const detail::SubmitOptions& options) {
    return group.submit(op, options);
  }
  /// Whether the id is of this rank alone, as in groups from users' own factories.
  static bool has_local_id(const ProcessGroup& group);
  static void set_id(ProcessGroup& group, const std::string& id);
  COHORT_API static void set_global_ranks(ProcessGroup& group, std::vector<int> ranks);
  static void set_recipe(ProcessGroup& group, std::shared_ptr<const GroupRecipe> recipe);
  /// For a group that takes the place of an older one: it gets its global ranks and the older one's timeout, names and
  /// recipe, and can be found by its id.
  static void inherit(const ProcessGroupPtr& heir, const ProcessGroup& older, std::vector<int> global_ranks);
  /// A group of these ranks of `parent`, in this order, made as the parent was. Only they have to call it; others get
  /// null. No other group uses the keys. Throws NotSupportedError if the parent was not made by new_group().
  COHORT_API static ProcessGroupPtr make_of(ProcessGroup& parent, const StorePtr& keys, const std::vector<int>& ranks,
                                            const SplitOptions& options);
};

}  // namespace cohort
