// SPDX-License-Identifier: BSD-3-Clause
//
// What a ProcessGroup is made of.
#pragma once

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

#include "group/courier.h"
#include "group/lane.h"
#include "group/operation.h"
#include "group/serial_executor.h"
#include "group/work_state.h"
#include "observe/recorder.h"

namespace cohort {

/// Counts the forks this process came from: a group of the parent must not be used in the child.
std::uint32_t fork_generation() noexcept;

struct ProcessGroup::State {
  static constexpr std::size_t device_types = 2;

  std::string id;
  std::vector<int> global_ranks;
  std::atomic<std::chrono::milliseconds> timeout;
  DebugLevel debug = debug_level();
  const std::uint32_t generation = fork_generation();

  mutable std::mutex mutex;  ///< for everything up to the next comment
  StorePtr store;
  std::string name;
  std::string description;
  std::optional<Device> bound_device;
  std::array<BackendPtr, device_types> backends;
  std::optional<DeviceType> default_type;
  std::vector<Hook> pre_hooks;
  std::vector<Hook> post_hooks;
  std::vector<std::function<void(std::string_view)>> abort_hooks;
  std::unique_ptr<observe::GroupTrace> trace;

  /// The same backends for the path that takes no lock: set by add_backend, cleared when nothing runs any more.
  std::array<std::atomic<Backend*>, device_types> fast{};
  std::atomic<Backend*> fast_default{nullptr};
  std::atomic<observe::GroupTrace*> fast_trace{nullptr};
  std::atomic<bool> has_hooks{false};
  /// Why operations are refused: shut down or released. Null: they are not.
  std::atomic<const char*> closed{nullptr};

  std::atomic<std::uint64_t> p2p_sequence{0};
  std::atomic<int> blocking_p2p{0};
  std::atomic<bool> has_dumped{false};  ///< the flight recorder, after the first failure
  int splits = 0;                       ///< in the lane's turn
  std::uint64_t monitored_barriers = 0;

  // From here on destroyed first, in reverse order: threads end before what they use.
  std::shared_ptr<SerialExecutor> continuations = std::make_shared<SerialExecutor>("cohort-then");
  Courier courier;
  Lane lane{"cohort-group"};

  Backend& backend_for(const detail::Issue& issue, OpType op) const;
  BackendPtr shared_backend(const Backend& backend) const;
  std::vector<BackendPtr> distinct_backends() const;
  std::chrono::milliseconds timeout_of(const detail::Issue& issue) const {
    return issue.timeout ? *issue.timeout : timeout.load(std::memory_order_relaxed);
  }
  ErrorContext context(OpType op) const { return {.group = id, .op = std::string(to_string(op))}; }
  /// Throws if the group takes no operations any more.
  void check_open(OpType op) const;

  /// Runs `fn(sequence, call)` as one collective, in turn, and returns when it is done.
  void run_in_turn(OpType op, Timeout timeout, const std::function<void(Backend&, Call&)>& fn);
};

/// The bookkeeping around one operation: recorder and hooks.
class Occasion {
 public:
  Occasion(ProcessGroup::State& state, const detail::Operation& operation, std::uint64_t sequence,
           std::chrono::milliseconds timeout, bool starts_now);
  void started();
  void succeeded();
  void failed(const std::exception_ptr& error);

 private:
  void finish(const std::exception_ptr& error);
  void run_hooks(const std::vector<Hook>& hooks);

  ProcessGroup::State& state_;
  observe::GroupTrace* trace_;
  observe::RecordId record_{};
  bool has_hooks_;
  HookEvent event_{};
};

/// At debug level detail: all ranks compare what they are about to do; a MismatchError on each if they differ.
void compare_fingerprints(Backend& backend, const detail::Operation& operation, Call& call);

}  // namespace cohort
