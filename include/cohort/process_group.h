// SPDX-License-Identifier: BSD-3-Clause
//
// A ProcessGroup is a set of processes (or threads) that run collective operations together. Groups are objects that
// are independent of each other; there is no default group. new_group.h creates them, and operations.h lists their
// operations.
//
//   auto pg = cohort::new_group("shm", 30s, "cpu");
//   pg->all_reduce(x);
//   auto pair = pg->split_group({0, 1});                           // null on the other ranks
//   auto half = pg->partition({{0, 1}, {2, 3}});                   // the one that this rank is in
//
//   auto batch = pg->batch();                                      // several operations as one
//   batch.send(right, next);
//   batch.recv(left, previous);
//   batch.run().wait();
//
//   pg->all_ok([&] { load(shard(pg->rank())); });                  // throws on every rank if it throws on any
//
// Order: collectives of a group run in the order in which they are issued, from any thread, and all ranks must issue
// them in the same order. Different groups do not wait for one another. Point-to-point operations make progress
// independently of collectives, but for nccl, where they take turns. A blocking operation on an idle group runs on the
// caller's thread; asynchronous operations do not block the caller (on nccl a call waits until NCCL has enqueued it,
// within its timeout), and a thread that waits for one runs it if it has not begun.
//
// Failures: every operation ends within its timeout, with a result or with an error that says what happened and which
// rank caused it (error.h). Mpi cannot always tell which, nor can ranks that have lost the job's store, or nccl without
// a TcpStore. After a lost peer, a timeout of a collective, a mismatch or abort(), the group is broken: later
// operations fail with the same cause and say since when. The surviving ranks can continue with shrink(), and take in
// processes that replace the lost ones with grow():
//
//   try {
//     train_step(*pg);
//   } catch (const cohort::PeerLostError&) {
//     pg = pg->shrink();                                           // at once, with those that are left
//   }
//   if (step % 100 == 0) pg = pg->grow();                          // admits those that wait in join_group()
//
// Thread safety: all member functions may be called from several threads. A group must not be used in a forked child,
// and not in a signal handler: the handler may have interrupted an operation of the group, or an allocation, which
// could then never go on, whatever the timeout. Let the handler set a flag, and call the group where the program looks
// at it.
#pragma once

#include <cohort/capabilities.h>
#include <cohort/device.h>
#include <cohort/export.h>
#include <cohort/memory.h>
#include <cohort/operations.h>
#include <cohort/options.h>
#include <cohort/store.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

namespace detail {
struct ChildNames;
struct GroupState;
}  // namespace detail

class Backend;
using BackendPtr = std::shared_ptr<Backend>;
class ProcessGroup;
using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

struct MonitoredBarrierOptions {
  Timeout timeout{};
  /// Name all missing ranks in the error, not only the first. Each rank is then given the whole timeout.
  bool wait_all_ranks = false;
};

struct SplitOptions {
  Timeout timeout{};  ///< default: the parent's timeout
  /// Default: "<parent's>:split:[0, 1]" for the name and "<parent's>:split:<n>" for the description.
  std::optional<std::string> name{};
  std::optional<std::string> description{};
};

struct PartitionOptions {
  Timeout timeout{};  ///< default: the parent's timeout
  /// Default: "<parent's>:part:<n>.<index of the part>" for both.
  std::optional<std::string> name{};
  std::optional<std::string> description{};
  /// If one of these is given, the new groups are made as by new_group(), through this group's store, instead of being
  /// split off. The backend is this group's by default, and there are no options by default.
  std::optional<std::string> backend{};
  std::optional<Options> options{};
};

struct MergeOptions {
  Timeout timeout{std::chrono::minutes(30)};
  /// Default for both: "<this group's>:merge".
  std::optional<std::string> name{};
  std::optional<std::string> description{};
};

struct ShrinkOptions {
  std::vector<int> excluded{};  ///< ranks to leave out although they are alive; equal on all survivors
  Timeout timeout{};
};

struct GrowOptions {
  /// Wait until this many processes have asked to join, or until the timeout. 0: do not wait for any.
  int at_least = 0;
  Timeout timeout{};
};

/// The argument of a hook. Only the first four fields are set for pre hooks.
struct HookEvent {
  OpType op = OpType::unknown;
  std::uint64_t sequence = 0;
  std::string_view group{};  ///< the group's id
  std::size_t bytes = 0;     ///< size of this rank's input, or of its output if it has no input
  std::chrono::steady_clock::time_point started{};
  std::chrono::steady_clock::time_point finished{};
  std::chrono::nanoseconds duration{};
  std::exception_ptr error{};  ///< null: the operation succeeded
};
using Hook = std::function<void(const HookEvent&)>;

/// Collects several operations, in order, and runs them as one.
class COHORT_API Batch : public Operations {
 public:
  Batch(Batch&&) noexcept;
  ~Batch() override;

  std::size_t size() const noexcept;
  /// Starts all collected operations and returns one Work for them, which is already completed if there are none.
  /// Collectives in a batch share one sequence number. The batch is empty afterwards.
  Work run(const AllGatherOptions& options = {});

 private:
  friend class ProcessGroup;
  explicit Batch(ProcessGroupPtr group);
  Work submit(const Operation& op, const detail::SubmitOptions& options) override;

  struct Content;
  std::unique_ptr<Content> content_;
};

class COHORT_API ProcessGroup : public Operations, public std::enable_shared_from_this<ProcessGroup> {
 public:
  static constexpr std::chrono::milliseconds default_timeout{std::chrono::minutes(30)};

  /// For factories (backend.h): makes a group without a backend, and performs no I/O. `id` must be equal on all ranks.
  /// If it is empty, the group has an id of this rank alone, until new_group replaces it with one that all ranks share.
  ProcessGroup(StorePtr store, int rank, int size, std::chrono::milliseconds timeout = default_timeout,
               std::string id = {});
  /// Waits for operations in progress. Their deadlines bound the wait.
  ~ProcessGroup() override;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// The name of the default backend, or "undefined" if there is none.
  std::string name() const;
  /// Equal on all ranks, different for every group of a job.
  const std::string& id() const noexcept;
  /// Empty unless set. split_group and merge_remote_group set it.
  std::string group_name() const;
  void set_group_name(std::string name);
  std::string group_desc() const;
  void set_group_desc(std::string description);
  /// Null after release_resources().
  StorePtr store() const;
  /// The members of this group, as ranks of the original group from which it was split, directly or through other
  /// groups.
  const std::vector<int>& global_ranks() const noexcept;

  // --- backends -----------------------------------------------------------------------------------------------------
  /// The first backend added is the default. A backend may serve several device types. Throws Error if the type already
  /// has a backend.
  void add_backend(DeviceType type, BackendPtr backend);
  void set_default_backend(DeviceType type);
  /// Throws an Error that lists the device types with a backend if there is none for this device.
  BackendPtr backend(const Device& device) const;
  BackendPtr default_backend() const;
  std::vector<DeviceType> device_types() const;
  Capabilities capabilities(const Device& device = {}) const;
  std::optional<Device> bound_device() const;
  /// Throws Error if the device has no index.
  void set_bound_device(std::optional<Device> device);
  void release_resources();

  // --- operations beyond operations.h -------------------------------------------------------------------------------
  Batch batch() { return Batch(shared_from_this()); }
  /// A barrier in which rank 0 finds out which ranks are missing and tells those that have arrived: either all ranks
  /// pass, or each gets an Error that names the missing ranks.
  void monitored_barrier(const MonitoredBarrierOptions& options = {});
  /// Returns the bytes of every rank, in rank order. Lengths may differ.
  std::vector<std::string> all_gather_bytes(std::string_view mine, const AllGatherOptions& options = {});
  /// Returns the bytes of every rank, in rank order, on the root, and nothing on the other ranks. Lengths may differ.
  std::vector<std::string> gather_bytes(std::string_view mine, const GatherOptions& options = {});
  /// Returns the root's bytes. `mine` is ignored on the other ranks.
  std::string broadcast_bytes(std::string_view mine, const BroadcastOptions& options = {});
  /// Calls `fn` on every rank. If it throws on any rank, every rank gets an Error that names the lowest such rank and
  /// contains its message.
  void all_ok(const std::function<void()>& fn, Timeout timeout = {});
  /// See memory.h. Throws NotSupportedError if the backend has no group memory; capabilities() tells beforehand.
  GroupMemory allocate(std::size_t bytes);

  // --- time and order -----------------------------------------------------------------------------------------------
  std::chrono::milliseconds timeout() const noexcept;
  /// Applies to operations that are issued afterwards.
  void set_timeout(std::chrono::milliseconds timeout);
  /// The sequence number of the last collective that was issued; 0 before the first. It is equal on all ranks that have
  /// issued the same number of collectives.
  std::uint64_t sequence_number() const;
  /// Waits until all operations that this process has issued have ended. Does not throw their errors, which stay in
  /// their Work. By default their own deadlines bound the wait. A timeout that passes first is an
  /// OperationTimeoutError, and they go on.
  void wait_for_pending(Timeout timeout = {});

  // --- groups from groups -------------------------------------------------------------------------------------------
  /// Called by all ranks with the same list. Returns null on ranks that are not in the list. The list is sorted, and a
  /// member's position in it is its new rank. Throws ValueError if the list is empty or contains a duplicate or unknown
  /// rank.
  ProcessGroupPtr split_group(std::vector<int> ranks, const SplitOptions& options = {});
  /// Makes several groups in one step, all at the same time. Called by all ranks with the same parts, which have no
  /// rank in common. Returns the group of the part that this rank is in, or null if it is in none. A member's position
  /// in its part, which may be in any order, is its new rank. Throws ValueError if there is no part, if a part is
  /// empty, or if a rank is given twice or is unknown.
  ProcessGroupPtr partition(const std::vector<std::vector<int>>& parts, const PartitionOptions& options = {});
  /// Called by every process of the groups to be merged, with a store that all of them can reach and that is used for
  /// nothing else. Ranks are assigned in order of arrival.
  ProcessGroupPtr merge_remote_group(const StorePtr& store, int size, const MergeOptions& options = {});
  /// Makes a new group after ranks have died, or to leave ranks out. Called by the survivors, who agree on the
  /// remaining members, even if another rank dies meanwhile. The new group shares no memory with this one, which cannot
  /// be used any more. Returns null on an excluded rank.
  ///
  /// All survivors get the same group or the same error. At the timeout, ranks that have neither died nor called
  /// shrink() are named; then shrink() may be called again. A rank that calls it after the others have gone on without
  /// it gets a PeerLostError. On shm and thread the survivors agree in the memory they share. On gloo and hybrid they
  /// agree through the group's store and make the group again, so the store must still be reachable (that of `cohort
  /// run` is; one that a rank hosts ends with that rank), and it must be a TcpStore: other stores do not know who has
  /// died, and the dead must be named in `excluded`. mpi cannot shrink (docs/faults.md).
  ProcessGroupPtr shrink(const ShrinkOptions& options = {});
  /// Admits the processes that wait in join_group() (new_group.h) for a group of this name. Called by all ranks.
  /// Returns a new group in which the ranks of this group keep their numbers and the newcomers follow, in order of
  /// their global ranks. So rank 0 is never a newcomer, and what it broadcasts (as the constructor of
  /// DistributedDataParallel does) brings newcomers up to date. Returns this group itself if nobody waits, which costs
  /// a broadcast of a few bytes and, on rank 0, two requests to the store; or if a newcomer dies or fails meanwhile,
  /// which is logged. This group stays usable in any case.
  ///
  /// Throws NotSupportedError if the backend cannot do it (capabilities().regrouping) or if the group was not made by
  /// new_group(), join_group(), or by shrinking or growing such a group.
  ProcessGroupPtr grow(const GrowOptions& options = {});

  /// Ends the group in an orderly way: refuses later operations with an Error and waits for those in progress, as
  /// wait_for_pending() does. If the timeout passes first, call it again, or abort(). Called by every rank.
  void shutdown(Timeout timeout = {});
  /// Ends the group at once, from any thread, but no process. Whatever is pending or begins on this rank then throws
  /// AbortedError, always. What waits on peers does so when they are told, unless it completes before: within 100 ms if
  /// they get a processor. On mpi, and on nccl without a TcpStore, nobody tells them, and it ends at its deadline at
  /// the latest.
  void abort(std::string_view reason = {});
  /// Why this group takes no operations any more ("the group was shut down", or aborted, released, shrunk); empty as
  /// long as it does. A group whose peers are lost is not closed by that: its operations fail.
  std::string_view why_closed() const noexcept;

  // --- watching -----------------------------------------------------------------------------------------------------
  /// Pre hooks are called before each operation, on the caller's thread; post hooks after it, on the thread that ran
  /// it; abort hooks when the group is aborted. An exception thrown by a hook is logged and otherwise ignored. Hooks
  /// cannot be removed.
  void add_pre_hook(Hook hook);
  void add_post_hook(Hook hook);
  void add_abort_hook(std::function<void(std::string_view reason)> hook);

 private:
  friend class Batch;
  friend class GroupAccess;
  Work submit(const Operation& op, const detail::SubmitOptions& options) override;
  /// Splits off all parts in one step, and returns the one that this rank is in.
  ProcessGroupPtr divide(const std::vector<std::vector<int>>& parts, std::chrono::milliseconds timeout,
                         const detail::ChildNames& names);
  /// Makes the part that this rank is in with another backend or with other options.
  ProcessGroupPtr remake(const std::vector<std::vector<int>>& parts, std::chrono::milliseconds timeout,
                         const detail::ChildNames& names, const PartitionOptions& options);
  /// Gives a child its global ranks and names, and lets it be found by its id.
  void present(ProcessGroup& child, const std::vector<int>& ranks, const detail::ChildNames& names,
               const std::string& label);

  std::shared_ptr<detail::GroupState> state_;  // also held by operations in progress
};

}  // namespace cohort
