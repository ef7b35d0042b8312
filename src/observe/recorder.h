// SPDX-License-Identifier: BSD-3-Clause
//
// What process groups call to have their operations recorded, and what dumps are made from.
//
//   observe::GroupTrace trace({.id = id, .backend = "shm", .rank = 0, .size = 4});      // with the group, once
//   const auto record = trace.begin({.op = to_string(OpType::all_reduce), .starts_at_once = true, ...});
//   ... trace.completed(record), or trace.failed(record);
//
// begin() and completed() together cost about 20 ns: no lock, no allocation, no system call (ring.cpp has the details).
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

/// What the later calls of an operation need. Keep it with the operation.
struct RecordId {
  std::uint64_t position = Ring::no_position;
  std::int64_t sequence = -1;  ///< of a collective
  std::int64_t elements = 0;
  const char* op = "";
};

struct GroupInfo {
  std::string id{};    ///< equal on all ranks, and of this group alone
  std::string name{};  ///< what the user calls it; may be empty
  std::string description{};
  std::string backend{};
  std::vector<int> global_ranks{};  ///< of all members, in order; empty: 0 to size - 1
  int rank = 0;
  int size = 1;

  int global_rank(int member) const {
    return global_ranks.empty() ? member : global_ranks.at(static_cast<std::size_t>(member));
  }
};

/// The last collective of a group that reached some stage. The parts are written one by one, without a lock: a dump
/// that is taken while the group moves on may show the number of one operation beside the name of its neighbour.
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

/// A group as the recorder knows it: for as long as the group lives, and then as long as one of its operations is in
/// the ring.
struct GroupState {
  std::uint32_t number = 0;  ///< counts the groups of the process
  GroupInfo info{};          ///< the names change under the recorder's mutex
  bool is_live = true;
  std::uint64_t last_position = 0;  ///< once it no longer lives: no record of it is here or beyond
  std::atomic<bool> is_used{false};
  /// On a cache line of their own, as every operation writes them.
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
  std::uint64_t first_position = 0;  ///< record ids count from here
  std::map<std::uint32_t, GroupSnapshot> groups{};
  std::uint64_t dropped = 0;
  TickScale scale;
};

struct RecorderOptions {
  std::size_t capacity = 2000;  ///< 0: keeps no operations
  bool stacks = false;          ///< also keeps who called; about 1 us for each operation
};

class Recorder {
 public:
  explicit Recorder(RecorderOptions options) : ring_(options.capacity, options.stacks) {}

  /// The one of this process, set up from the environment the first time. Never destroyed: threads may record while the
  /// process exits.
  static Recorder& process();

  std::size_t capacity() const noexcept { return ring_.capacity(); }
  /// Hides what was recorded so far and counts from 0 again. Operations in flight end unnoticed.
  void reset_all();
  Snapshot snapshot();
  /// Operations that a snapshot would show.
  std::size_t size();
  /// The global rank of the first group there was; -1: none yet.
  int first_rank() const noexcept { return first_rank_.load(std::memory_order_relaxed); }

 private:
  friend class GroupTrace;

  std::shared_ptr<GroupState> add(GroupInfo info);
  void remove(GroupState& state);
  void forget_old_groups();
  std::vector<Record> visible_records() const { return ring_.read(epoch_start_); }

  Ring ring_;
  TickClock clock_;
  std::atomic<int> first_rank_{-1};

  std::mutex mutex_;  ///< for everything below; never taken while recording
  std::uint64_t epoch_start_ = 0;
  std::uint32_t next_group_ = 0;
  std::map<std::uint32_t, std::shared_ptr<GroupState>> groups_;
};

/// One group as one rank sees it. Its members but the setters are safe from several threads. Must outlive the
/// operations begun through it.
class GroupTrace {
 public:
  explicit GroupTrace(GroupInfo info, Recorder& recorder = Recorder::process());
  ~GroupTrace();
  GroupTrace(const GroupTrace&) = delete;
  GroupTrace& operator=(const GroupTrace&) = delete;

  void set_name(std::string name);
  void set_description(std::string description);

  RecordId begin(const Event& event) noexcept;
  void started(const RecordId& id) noexcept;
  void completed(const RecordId& id) noexcept;
  /// It ended without a result: timed out, aborted, or its peer is gone.
  void failed(const RecordId& id) noexcept;

  Progress last_enqueued() const noexcept { return state_->enqueued.get(); }
  Progress last_started() const noexcept { return state_->started.get(); }
  Progress last_completed() const noexcept { return state_->completed.get(); }

 private:
  Recorder& recorder_;
  std::shared_ptr<GroupState> state_;
};

}  // namespace cohort::observe
