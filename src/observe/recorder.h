// SPDX-License-Identifier: BSD-3-Clause
//
// Process groups call this interface to have their operations recorded, and dumps are made from it.
//
//   observe::GroupTrace trace({.id = id, .backend = "shm", .rank = 0, .size = 4});      // with the group, once
//   const auto record = trace.begin({.op = to_string(OpType::all_reduce), .starts_at_once = true, ...});
//   ... trace.completed(record), or trace.failed(record);
//
// begin() and completed() together cost about 20 ns. They use no lock, no allocation and no system call; see ring.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/ticks.h"
#include "observe/ring.h"

namespace cohort::observe {

/// What later calls for an operation need. It is kept with the operation.
struct RecordId {
  std::uint64_t position = Ring::no_position;
  std::int64_t sequence = -1;  ///< for collectives
  std::int64_t elements = 0;
  const char* op = "";
};

struct GroupInfo {
  std::string id{};    ///< equal on all ranks, and different for every group
  std::string name{};  ///< the user's name for the group; may be empty
  std::string description{};
  std::string backend{};
  std::vector<int> global_ranks{};  ///< the global ranks of all members, in order; empty: 0 to size - 1
  int rank = 0;
  int size = 1;

  int global_rank(int member) const {
    return global_ranks.empty() ? member : global_ranks.at(static_cast<std::size_t>(member));
  }
};

/// The last collective of a group that reached some stage. The fields are written one by one, without a lock, so a dump
/// that is taken meanwhile may show the number of one operation with the name of the next.
struct Progress {
  std::int64_t sequence = -1;
  std::int64_t elements = -1;
  const char* op = "";
};

class AtomicProgress {
 public:
  void set(const Progress& progress) noexcept {
    op_.store(progress.op, std::memory_order_relaxed);
    elements_.store(progress.elements, std::memory_order_relaxed);
    sequence_.store(progress.sequence, std::memory_order_relaxed);
  }
  Progress get() const noexcept {
    return {sequence_.load(std::memory_order_relaxed), elements_.load(std::memory_order_relaxed),
            op_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> sequence_{-1};
  std::atomic<std::int64_t> elements_{-1};
  std::atomic<const char*> op_{""};
};

/// What the recorder knows about a group. It exists as long as the group does, and afterwards as long as one of the
/// group's operations is in the ring.
struct RecordedGroup {
  std::uint32_t number = 0;  ///< numbers the groups of the process
  GroupInfo info{};          ///< the recorder's mutex protects changes of the names
  bool is_live = true;
  std::uint64_t last_position = 0;  ///< if the group has been destroyed: all its records are before this position
  std::atomic<bool> is_used{false};
  /// On a cache line of their own, because every operation writes them.
  alignas(64) AtomicProgress enqueued{};
  AtomicProgress started{};
  AtomicProgress completed{};
};

/// A group in a dump.
struct GroupSnapshot {
  std::uint32_t number = 0;
  GroupInfo info{};
  Progress enqueued{};
  Progress started{};
  Progress completed{};
};

struct Snapshot {
  std::vector<Record> records{};     ///< in recording order
  std::uint64_t first_position = 0;  ///< record ids are relative to this
  std::map<std::uint32_t, GroupSnapshot> groups{};
  std::uint64_t dropped = 0;
  TickScale scale;
};

struct RecorderOptions {
  std::size_t capacity = 2000;  ///< 0: keeps no operations
  bool stacks = false;          ///< also keep call stacks, which costs about 1 us per operation
};

class Recorder {
 public:
  explicit Recorder(RecorderOptions options) : ring_(options.capacity, options.stacks) {}

  /// The recorder of this process, which the first call sets up from the environment. Never destroyed, because threads
  /// may record while the process exits.
  static Recorder& process();

  std::size_t capacity() const noexcept { return ring_.capacity(); }
  /// Hides everything that was recorded so far and numbers records from 0 again. Operations in progress are hidden too,
  /// even after they end.
  void reset_all();
  Snapshot snapshot();
  /// The number of operations that a snapshot would show.
  std::size_t size();
  /// The global rank of this process in its first group; -1 if there has been none.
  int first_rank() const noexcept { return first_rank_.load(std::memory_order_relaxed); }

 private:
  friend class GroupTrace;

  std::shared_ptr<RecordedGroup> add(GroupInfo info);
  void remove(RecordedGroup& state);
  void forget_old_groups();
  std::vector<Record> visible_records() const { return ring_.read(epoch_start_); }

  Ring ring_;
  TickClock clock_;
  std::atomic<int> first_rank_{-1};

  std::mutex mutex_;  ///< protects the members below; never locked while recording
  std::uint64_t epoch_start_ = 0;
  std::uint32_t next_group_ = 0;
  std::map<std::uint32_t, std::shared_ptr<RecordedGroup>> groups_;
};

/// Records the operations of one rank of one group. All member functions except the setters are thread-safe. Must
/// outlive the operations that it has begun.
class GroupTrace {
 public:
  explicit GroupTrace(GroupInfo info, Recorder& recorder = Recorder::process());
  ~GroupTrace();
  GroupTrace(const GroupTrace&) = delete;
  GroupTrace& operator=(const GroupTrace&) = delete;

  void set_name(std::string name);
  void set_description(std::string description);

  RecordId begin(const Event& event) noexcept {
    RecordId id;
    begin(event, id);
    return id;
  }
  /// Into its place: a copy of what was just written field by field would wait for the stores.
  void begin(const Event& event, RecordId& id) noexcept;
  void started(const RecordId& id) noexcept;
  void completed(const RecordId& id) noexcept;
  /// The operation ended without a result: it timed out, was aborted or lost a peer.
  void failed(const RecordId& id) noexcept;

  Progress last_enqueued() const noexcept { return state_->enqueued.get(); }
  Progress last_started() const noexcept { return state_->started.get(); }
  Progress last_completed() const noexcept { return state_->completed.get(); }

 private:
  Recorder& recorder_;
  std::shared_ptr<RecordedGroup> state_;
};

}  // namespace cohort::observe
