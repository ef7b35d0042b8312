// SPDX-License-Identifier: BSD-3-Clause
//
// A ProcessGroup is a set of processes (or threads) that run collective operations together, as an object: groups are
// independent of each other, and there is no default one. new_group.h makes them; operations.h says what they do.
//
//   auto pg = cohort::new_group("shm", 30s, "cpu");
//   pg->all_reduce(x);
//   auto pair = pg->split_group({0, 1});                           // null on ranks outside
//
//   auto batch = pg->batch();                                      // several operations as one
//   batch.send(right, next);
//   batch.recv(left, previous);
//   batch.run().wait();
//
//   pg->all_ok([&] { load(shard(pg->rank())); });                  // throws on all ranks if it throws on one
//
// Order: collectives run in the order they are issued, from whichever thread, and all ranks must issue them in the same
// order; groups do not wait for one another. Point-to-point operations progress beside them. A blocking operation on an
// idle group runs on the caller's thread; asynchronous ones never block the caller.
//
// When something goes wrong: every operation ends, within its timeout, with a result or with an error that says what
// happened and which rank did it (error.h). After a lost peer, a timeout of a collective, a mismatch or abort() the
// group is broken: its later operations fail with the same cause. The survivors can go on with shrink().
//
// Thread safety: all members may be called from several threads. A group must not be used in a forked child.
#pragma once

#include <cohort/capabilities.h>
#include <cohort/device.h>
#include <cohort/export.h>
#include <cohort/memory.h>
#include <cohort/operations.h>
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
struct GroupState;
}  // namespace detail

class Backend;
using BackendPtr = std::shared_ptr<Backend>;
class ProcessGroup;
using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

struct MonitoredBarrierOptions {
  Timeout timeout{};
  /// Name all missing ranks (each is given the whole timeout), not only the first.
  bool wait_all_ranks = false;
};

struct SplitOptions {
  Timeout timeout{};  ///< else the parent's
  /// Else "<parent's>:split:[0, 1]" and "<parent's>:split:<n>".
  std::optional<std::string> name{};
  std::optional<std::string> description{};
};

struct MergeOptions {
  Timeout timeout{std::chrono::minutes(30)};
  /// Else "<this group's>:merge".
  std::optional<std::string> name{};
  std::optional<std::string> description{};
};

struct ShrinkOptions {
  std::vector<int> excluded{};  ///< living ranks to leave out; all survivors give the same
  Timeout timeout{};
};

/// What a hook is told. Pre hooks know the first four.
struct HookEvent {
  OpType op = OpType::unknown;
  std::uint64_t sequence = 0;
  std::string_view group{};  ///< its id
  std::size_t bytes = 0;     ///< of this rank's input, or output where it has none
  std::chrono::steady_clock::time_point started{};
  std::chrono::steady_clock::time_point finished{};
  std::chrono::nanoseconds duration{};
  std::exception_ptr error{};  ///< null: it went well
};
using Hook = std::function<void(const HookEvent&)>;

/// Several operations that run as one: collected here, in order, and started together by run().
class COHORT_API Batch : public Operations {
 public:
  Batch(Batch&&) noexcept;
  ~Batch() override;

  std::size_t size() const noexcept;
  /// One Work for all of them; with nothing collected it is completed. Collectives take one sequence number together.
  /// The batch is empty afterwards.
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

  /// No I/O, no backend yet: for factories (backend.h). `id`: equal on all ranks; made up from the store's key prefix
  /// by new_group, else a local one.
  ProcessGroup(StorePtr store, int rank, int size, std::chrono::milliseconds timeout = default_timeout,
               std::string id = {});
  /// Waits for what is under way (each operation's deadline bounds it).
  ~ProcessGroup() override;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Of the default backend; "undefined" while there is none.
  std::string name() const;
  /// Equal on all ranks, different for every group of a job.
  const std::string& id() const noexcept;
  /// Empty until set; split_group and merge_remote_group set it.
  std::string group_name() const;
  void set_group_name(std::string name);
  std::string group_desc() const;
  void set_group_desc(std::string description);
  /// Null after release_resources().
  StorePtr store() const;
  /// This group's ranks as ranks of the first group it was split from.
  const std::vector<int>& global_ranks() const noexcept;

  // --- backends -----------------------------------------------------------------------------------------------------
  /// The first one added is the default. A backend may serve several device types; a type that has one is an Error.
  void add_backend(DeviceType type, BackendPtr backend);
  void set_default_backend(DeviceType type);
  /// An Error names the device types there are.
  BackendPtr backend(const Device& device) const;
  BackendPtr default_backend() const;
  std::vector<DeviceType> device_types() const;
  Capabilities capabilities(const Device& device = {}) const;
  std::optional<Device> bound_device() const;
  /// Without an index an Error.
  void set_bound_device(std::optional<Device> device);
  void release_resources();

  // --- operations beyond operations.h -------------------------------------------------------------------------------
  Batch batch() { return Batch(shared_from_this()); }
  /// Rank 0 sees who is missing and says so to all who came: all pass, or each gets an Error naming the missing.
  void monitored_barrier(const MonitoredBarrierOptions& options = {});
  /// Bytes of any length from every rank, in rank order.
  std::vector<std::string> all_gather_bytes(std::string_view mine, const AllGatherOptions& options = {});
  /// The root's bytes; what the others pass is not looked at.
  std::string broadcast_bytes(std::string_view mine, const BroadcastOptions& options = {});
  /// Calls `fn`; if it throws on any rank, every rank gets an Error naming the lowest such rank, with its message.
  void all_ok(const std::function<void()>& fn, Timeout timeout = {});
  /// See memory.h. NotSupportedError where the backend has none: ask capabilities().
  GroupMemory allocate(std::size_t bytes);

  // --- time and order -----------------------------------------------------------------------------------------------
  std::chrono::milliseconds timeout() const noexcept;
  /// For operations issued afterwards.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Of the last collective issued; 0 before the first. Equal on all ranks while they are in step.
  std::uint64_t sequence_number() const;
  /// Until everything this process issued before has ended; errors stay with their Work.
  void wait_for_pending();

  // --- groups from groups -------------------------------------------------------------------------------------------
  /// Called by all ranks with the same list; a null pointer on ranks outside it. Ranks are sorted: a member's place in
  /// the sorted list is its new rank. Empty, duplicate or unknown ranks are a ValueError.
  ProcessGroupPtr split_group(std::vector<int> ranks, const SplitOptions& options = {});
  /// Called by every process of the groups to be joined, with a store all reach and nobody else uses. Ranks are given
  /// in order of arrival.
  ProcessGroupPtr merge_remote_group(const StorePtr& store, int size, const MergeOptions& options = {});
  /// After a death (or to leave ranks out): called by the survivors, who agree on who is left, also when another dies
  /// meanwhile. The new group has fresh memory; this one is finished. On an excluded rank: null.
  ProcessGroupPtr shrink(const ShrinkOptions& options = {});

  /// Ends the group in order: waits for what is under way; operations afterwards are an Error. Every rank calls it.
  void shutdown();
  /// Ends the group at once, from any thread: whoever waits in it, here or at the peers, gets an AbortedError within
  /// 100 ms. The processes live on.
  void abort(std::string_view reason = {});

  // --- watching -----------------------------------------------------------------------------------------------------
  /// Called before, and after, each operation (pre: on the caller's thread; post: on the thread that ran it), and when
  /// the group is aborted. What a hook throws is logged and dropped. Hooks cannot be removed.
  void add_pre_hook(Hook hook);
  void add_post_hook(Hook hook);
  void add_abort_hook(std::function<void(std::string_view reason)> hook);

 private:
  friend class Batch;
  friend class GroupAccess;
  Work submit(const Operation& op, const detail::SubmitOptions& options) override;

  std::shared_ptr<detail::GroupState> state_;  // operations under way hold it too
};

}  // namespace cohort
