// SPDX-License-Identifier: BSD-3-Clause
//
// A Backend moves the bytes of one group on one type of device. Users call ProcessGroup, which checks arguments, keeps
// order, numbers and records operations and makes them asynchronous. A backend of your own only has to perform them:
//
//   class Mine : public cohort::Backend {
//    public:
//     Mine(int rank, int size) : Backend("mine", rank, size) {}
//     void broadcast(const cohort::Operation& op, cohort::Call& call) override { ... op.out(), op.root ... }
//   };
//   cohort::register_backend("mine", [](auto store, int rank, int size, auto timeout, auto device, const auto& options) {
//     auto group = std::make_shared<cohort::ProcessGroup>(store, rank, size, timeout);
//     group->add_backend(device.type, std::make_shared<Mine>(rank, size));
//     return group;
//   });
//
// operation.h says which memory each operation has; it is contiguous and has been checked. Collectives are called one
// at a time, in issue order, from whichever thread. Each blocks until it is done and throws (see error.h) when it fails
// or its deadline passes. A function that is not overridden throws NotSupportedError; capabilities() says beforehand
// which ones are.
//
// A backend for device memory is stream-ordered instead (an argument of the constructor): it enqueues on the stream of
// the call and returns; see completion.h. A call without a stream is then one of the library's own, on host memory, and
// blocks as above.
//
// docs/writing-a-backend.md builds one step by step.
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
#include <vector>

namespace cohort {

/// The circumstances of one operation: its number in the group, how long it may take, and its stream.
class Call {
 public:
  /// `timeout`: what the user gave, for messages.
  Call(OpType op, std::uint64_t sequence, Deadline deadline, std::chrono::milliseconds timeout = {})
      : op_(op), sequence_(sequence), timeout_(timeout), deadline_(deadline) {}
  /// The clock is read when somebody asks: an operation that never waits long never does.
  Call(OpType op, std::uint64_t sequence, std::chrono::milliseconds timeout)
      : op_(op), sequence_(sequence), timeout_(timeout) {}

  /// What the user called, for messages. The operation that a backend performs may be a part of it.
  OpType op() const noexcept { return op_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  Deadline deadline() noexcept {
    if (!deadline_) deadline_ = Deadline::after(timeout_);
    return *deadline_;
  }
  /// What the user gave, for messages.
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  /// The same without the stream, to be kept beyond the call.
  Call detached() noexcept { return {op_, sequence_, deadline(), timeout_}; }
  /// Null for operations on host memory.
  OnStream* on_stream() const noexcept { return on_stream_; }
  void set_on_stream(OnStream& on_stream) noexcept { on_stream_ = &on_stream; }

 private:
  OpType op_;
  std::uint64_t sequence_;
  OnStream* on_stream_ = nullptr;
  std::chrono::milliseconds timeout_{};
  std::optional<Deadline> deadline_;
};

/// A send or receive under way. Destroying one that is not done cancels it.
class COHORT_API Transfer {
 public:
  virtual ~Transfer() = default;
  /// Makes what progress it can without waiting; true when done. Throws when it cannot be done any more.
  virtual bool advance() = 0;
  /// Throws if it never will be done: its peer is dead, the group aborted. May cost a system call.
  virtual void check() {}
  /// Whether a receive has been matched with a message, which would be lost if it were destroyed now.
  virtual bool has_begun() const { return false; }
  /// Once done: who sent it, in this group.
  virtual int source() const = 0;
};

class Backend;
using BackendPtr = std::shared_ptr<Backend>;

/// For a child of a group; see ProcessGroup::split_group.
struct BackendSplit {
  std::vector<int> ranks{};  ///< of the parent, ascending; a member's index is its new rank
  Timeout timeout{};         ///< default: the parent's
  std::string id{};          ///< of the new group
};

/// What is left of a group; see ProcessGroup::shrink.
struct BackendShrunk {
  std::vector<int> ranks{};  ///< of the old group, ascending
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

  /// Stream-ordered backends: throws an error for arguments that cannot be performed, before anything has happened.
  virtual void check_arguments(const Operation& op) const;

  /// Performs an operation and returns who sent, for a receive, else -1. Calls the function below that the type names,
  /// for a coalesced operation that of each member, between begin_batch() and end_batch(). A backend that treats all
  /// types alike overrides this one alone.
  virtual int perform(const Operation& op, Call& call);

  /// Point-to-point: matched by peer and tag, in order. Any thread may call these, several at a time.
  virtual std::unique_ptr<Transfer> start_send(const Operation& op, Call& call);
  virtual std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call);
  /// Rests between two rounds of advance(), until something may have changed but not past `until`.
  virtual void rest(Deadline until);

  /// Memory that the other ranks can reach; see memory.h.
  virtual GroupMemory allocate(std::size_t bytes);

  /// Called by all ranks; null on those that are not members of the new group.
  virtual BackendPtr split(const BackendSplit& split, Deadline deadline);
  /// Before shrink(): ends whatever still runs, with an error. By default abort().
  virtual void prepare_shrink();
  virtual BackendShrunk shrink(std::span<const int> excluded, Deadline deadline);
  /// Ends everything that waits, here and at the peers, with an AbortedError that carries `reason`. Any thread.
  virtual void abort(std::string_view reason);
  /// Returns when everything that was enqueued has ended, which each operation's deadline bounds.
  virtual void drain();
  /// No operation comes after this call.
  virtual void shutdown();

  /// "rank 2 is in broadcast #6; ..." for errors, as far as the backend knows; otherwise empty.
  virtual std::string status() const { return {}; }

 protected:
  // What a backend overrides; perform() calls them.
  virtual void all_reduce(const Operation& op, Call& call);
  virtual void reduce(const Operation& op, Call& call);
  virtual void broadcast(const Operation& op, Call& call);
  virtual void all_gather(const Operation& op, Call& call);
  virtual void gather(const Operation& op, Call& call);
  virtual void scatter(const Operation& op, Call& call);
  virtual void reduce_scatter(const Operation& op, Call& call);
  virtual void all_to_all(const Operation& op, Call& call);
  virtual void barrier(const Operation& op, Call& call);
  /// Around operations that are issued as one. cancel_batch() instead of end_batch() where one of them threw.
  virtual void begin_batch(Call& call);
  virtual void end_batch(Call& call);
  virtual void cancel_batch(Call& call) noexcept;
  /// Blocking; recv returns who sent. By default a transfer is started and advanced until it is done.
  virtual void send(const Operation& op, Call& call);
  virtual int recv(const Operation& op, Call& call);

  [[noreturn]] void refuse(std::string_view what) const;

 private:
  const std::string name_;
  const int rank_;
  const int size_;
  const bool is_stream_ordered_;
};

}  // namespace cohort
