// SPDX-License-Identifier: BSD-3-Clause
//
// A Backend moves the data of one group on one type of device. Users call ProcessGroup, which checks the arguments,
// orders, numbers and records the operations, and makes them asynchronous. A backend of your own only has to perform
// them:
//
//   class Mine : public cohort::Backend {
//    public:
//     Mine(int rank, int size) : Backend("mine", rank, size) {}
//     void broadcast(const cohort::Operation& op, cohort::Call& call) override { ... op.out(), op.root ... }
//   };
//   cohort::register_backend("mine", [](auto store, int rank, int size, auto timeout, auto device, const auto&) {
//     auto group = std::make_shared<cohort::ProcessGroup>(store, rank, size, timeout);
//     group->add_backend(device.type, std::make_shared<Mine>(rank, size));
//     return group;
//   });
//
// operation.h lists the memory of each operation. That memory is contiguous, and its sizes have been checked.
// Collectives are called one at a time, in issue order, from any thread. Each call blocks until the operation is done,
// and throws (see error.h) if it fails or its deadline passes. A function that is not overridden throws
// NotSupportedError; capabilities() tells callers beforehand which operations are supported.
//
// A backend for device memory is stream-ordered instead (an argument of the constructor): it enqueues the operation on
// the stream of the call and returns; see completion.h. It may still get calls without a stream. These are internal
// operations of the library on host memory, and they block as described above.
//
// docs/writing-a-backend.md builds a backend step by step.
#pragma once

#include <cohort/buffer.h>
#include <cohort/capabilities.h>
#include <cohort/completion.h>
#include <cohort/deadline.h>
#include <cohort/device.h>
#include <cohort/dtype.h>
#include <cohort/error.h>
#include <cohort/export.h>
#include <cohort/memory.h>
#include <cohort/op_type.h>
#include <cohort/operation.h>
#include <cohort/reduce_op.h>
#include <cohort/timeout.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort {

/// What a group still has to do when an operation is about to wait; see Call::waits().
class OnWait {
 public:
  virtual void waits() noexcept = 0;

 protected:
  ~OnWait() = default;
};

/// The circumstances of one operation: its sequence number in the group, its deadline, and its stream.
class Call {
 public:
  /// `timeout` is the user's timeout, for messages only.
  Call(OpType op, std::uint64_t sequence, Deadline deadline, std::chrono::milliseconds timeout)
      : op_(op), sequence_(sequence), timeout_(timeout), deadline_(deadline) {}
  /// A part of what the user called: messages tell the time that it was given.
  Call(OpType op, std::uint64_t sequence, Deadline deadline)
      : Call(op, sequence, deadline, std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining())) {}
  /// The deadline is computed when it is first asked for, so that an operation which never waits long does not read the
  /// clock.
  Call(OpType op, std::uint64_t sequence, std::chrono::milliseconds timeout)
      : op_(op), sequence_(sequence), timeout_(timeout) {}

  /// The operation that the user called, for messages. The one that the backend performs may be only a part of it.
  OpType op() const noexcept { return op_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  Deadline deadline() noexcept {
    if (!deadline_) deadline_ = Deadline::after(timeout_);
    return *deadline_;
  }
  /// The user's timeout, for messages.
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  /// A copy without the stream, which may be kept after the call has returned.
  Call detached() noexcept {
    auto copy = *this;
    copy.deadline_ = deadline();
    copy.on_stream_ = nullptr;
    copy.on_wait_ = nullptr;
    return copy;
  }
  /// For a backend that performs an operation through parts, each of which is an operation of another backend: a digest
  /// of what the ranks must agree on as a whole, which the parts compare together with their own operations. 0: none.
  std::uint32_t whole() const noexcept { return whole_; }
  void set_whole(std::uint32_t digest) noexcept { whole_ = digest; }
  /// Called by a backend that has told the peers of the operation and is about to wait for them, or to work for more
  /// than a moment: the group then records the operation, which costs no time while the answers are on their way. An
  /// operation that ends without this call is recorded as a whole, when it has ended. Only for backends that have
  /// declared it (Backend::will_say_when_it_waits); for all others the operation is recorded before it is performed.
  void waits() noexcept {
    if (on_wait_ != nullptr) std::exchange(on_wait_, nullptr)->waits();
  }
  void set_on_wait(OnWait* on_wait) noexcept { on_wait_ = on_wait; }
  /// Null for operations on host memory.
  OnStream* on_stream() const noexcept { return on_stream_; }
  void set_on_stream(OnStream& on_stream) noexcept { on_stream_ = &on_stream; }

 private:
  OpType op_;
  std::uint32_t whole_ = 0;
  std::uint64_t sequence_;
  OnStream* on_stream_ = nullptr;
  OnWait* on_wait_ = nullptr;
  std::chrono::milliseconds timeout_{};
  std::optional<Deadline> deadline_;
};

/// A send or receive in progress. Destroying a Transfer that is not done cancels it.
class COHORT_API Transfer {
 public:
  virtual ~Transfer() = default;
  /// Makes as much progress as it can without waiting. Returns true when the transfer is done, and throws if it has
  /// failed.
  virtual bool advance() = 0;
  /// Throws if the transfer can never complete, because its peer is dead or the group was aborted. May make a system
  /// call.
  virtual void check() {}
  /// Called now and then while a thread waits until the transfer has ended: it is not only under way.
  virtual void someone_waits() {}
  /// Called when the deadline of the transfer has passed. May throw an error that says more than that its peer did not
  /// answer, such as whom the peer waits for.
  virtual void miss_deadline() {}
  /// Whether a receive has been matched with a message, which would be lost if the receive were destroyed now.
  virtual bool has_begun() const { return false; }
  /// The sender's rank in this group. Valid once the transfer is done.
  virtual int source() const = 0;
};

class Backend;
using BackendPtr = std::shared_ptr<Backend>;

/// Describes a child of a group; see ProcessGroup::split_group and ProcessGroup::partition.
struct BackendSplit {
  std::vector<int> ranks{};  ///< the members' ranks in the parent; a member's index is its new rank
  Timeout timeout{};         ///< default: the parent's timeout
  std::string id{};          ///< the id of the new group
};

/// The survivors of a group; see ProcessGroup::shrink.
struct BackendShrunk {
  std::vector<int> ranks{};  ///< the survivors' ranks in the old group, ascending
  BackendPtr backend{};
};

class COHORT_API Backend {
 public:
  static constexpr int any_source = Operation::any_source;

  Backend(std::string name, int rank, int size, bool stream_ordered = false)
      : name_(std::move(name)), rank_(rank), size_(size), is_stream_ordered_(stream_ordered) {}
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const std::string& name() const noexcept { return name_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  virtual Capabilities capabilities() const { return {}; }
  bool is_stream_ordered() const noexcept { return is_stream_ordered_; }
  bool says_when_it_waits() const noexcept { return says_when_it_waits_; }

  /// For stream-ordered backends: throws if the backend cannot perform the operation with these arguments. Called
  /// before anything has happened.
  virtual void check_arguments(const Operation& op) const;

  /// Performs an operation. Returns the sender's rank for a receive, and -1 otherwise. Calls the function below that
  /// the operation's type names; for a coalesced operation, the function of each member, between begin_batch() and
  /// end_batch(). A backend that treats all types alike overrides only this function.
  virtual int perform(const Operation& op, Call& call);

  /// Point-to-point operations are matched by peer and tag, in order. Several threads may call these functions at the
  /// same time.
  virtual std::unique_ptr<Transfer> start_send(const Operation& op, Call& call);
  virtual std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call);
  /// Waits between two rounds of advance() until a transfer may have progressed, but not longer than `until`.
  virtual void rest(Deadline until);

  /// Allocates memory that the other ranks can access; see memory.h.
  virtual GroupMemory allocate(std::size_t bytes);

  /// Called by all ranks. Returns null on ranks that are not members of the new group.
  virtual BackendPtr split(const BackendSplit& split, Deadline deadline);
  /// Called by all ranks with the same parts, which have no rank in common. Returns the part that this rank is in, or
  /// null. By default it splits off one part after the other; override it if all of them can be made at once.
  virtual BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline);
  /// Called before shrink(): ends every operation that is still running with an error. Calls abort() by default.
  virtual void prepare_shrink();
  /// For backends that can agree on the survivors without a store. A group whose backend has no shrink() of its own,
  /// but the capability `regrouping`, is shrunk through its store: its factory is called again for the survivors.
  virtual BackendShrunk shrink(std::span<const int> excluded, Deadline deadline);
  /// Which of these ranks have died or left the group, as far as the backend knows; none by default. Called repeatedly
  /// while a group is shrunk through its store. May throw if what it has to ask cannot be reached.
  virtual std::vector<int> lost_among(std::span<const int> ranks);
  /// Ends every operation that waits, on this rank and on its peers, with an AbortedError that carries `reason`. May be
  /// called from any thread.
  virtual void abort(std::string_view reason);
  /// Waits until every operation that was enqueued has ended, which their deadlines bound. Returns false if this one
  /// passes first.
  virtual bool drain(Deadline deadline);
  /// No operation follows this call. Waits for nothing longer than until the deadline, and does not throw because of
  /// it.
  virtual void shutdown(Deadline deadline);

  /// What the other ranks are doing, for error messages, as in "rank 2 is in broadcast #6; ...". Empty if the backend
  /// does not know.
  virtual std::string status() const { return {}; }

 protected:
  /// For the constructor of a backend: every operation that it performs calls Call::waits() before it waits.
  void will_say_when_it_waits() noexcept { says_when_it_waits_ = true; }

  // These are the functions that a backend overrides; perform() calls them.
  virtual void all_reduce(const Operation& op, Call& call);
  virtual void reduce(const Operation& op, Call& call);
  virtual void broadcast(const Operation& op, Call& call);
  virtual void all_gather(const Operation& op, Call& call);
  virtual void gather(const Operation& op, Call& call);
  virtual void scatter(const Operation& op, Call& call);
  virtual void reduce_scatter(const Operation& op, Call& call);
  virtual void all_to_all(const Operation& op, Call& call);
  virtual void barrier(const Operation& op, Call& call);
  /// Called before and after operations that are issued as one. If one of them throws, cancel_batch() is called instead
  /// of end_batch().
  virtual void begin_batch(Call& call);
  virtual void end_batch(Call& call);
  virtual void cancel_batch(Call& call) noexcept;
  /// These block; recv() returns the sender's rank. By default they start a transfer and advance it until it is done.
  virtual void send(const Operation& op, Call& call);
  virtual int recv(const Operation& op, Call& call);

  [[noreturn]] void refuse(std::string_view what) const;

 private:
  const std::string name_;
  const int rank_;
  const int size_;
  const bool is_stream_ordered_;
  bool says_when_it_waits_ = false;
};

}  // namespace cohort
