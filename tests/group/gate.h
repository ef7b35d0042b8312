// SPDX-License-Identifier: BSD-3-Clause
//
// A backend whose operations end when the test says so, so that asynchronous operations can be examined while they are
// in progress.
#pragma once

#include <cohort/backend.h>
#include <cohort/hash_store.h>
#include <cohort/process_group.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cohort::test {

/// Closed at first. Counts the arrivals.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  bool is_open() const {
    const std::lock_guard lock(mutex_);
    return is_open_;
  }
  /// Waits until the gate is open. Returns false if the deadline passes first.
  bool pass(Deadline deadline) {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    const auto until = [this] { return is_open_; };
    if (!deadline.is_never()) return changed_.wait_until(lock, deadline.when(), until);
    changed_.wait(lock, until);
    return true;
  }
  /// Waits until `count` callers have arrived.
  void await_arrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int arrived_ = 0;
};

/// all_reduce and receives wait at the gate, broadcast fails, and barrier returns at once.
class GatedBackend final : public Backend {
 public:
  GatedBackend(int rank, int size) : Backend("gated", rank, size) {}

  Gate gate;

  void all_reduce(const Operation& /*op*/, Call& call) override {
    if (gate.pass(call.deadline())) return;
    throw OperationTimeoutError("the gate stayed closed", {.op = "all_reduce", .sequence = call.sequence()});
  }
  void broadcast(const Operation& /*op*/, Call& call) override {
    throw BackendError("broken on purpose", {.op = "broadcast", .sequence = call.sequence()});
  }
  void barrier(const Operation& /*op*/, Call& /*call*/) override {}
  std::unique_ptr<Transfer> start_recv(const Operation& /*op*/, Call& /*call*/) override {
    return std::make_unique<AtTheGate>(gate);
  }

 private:
  class AtTheGate final : public Transfer {
   public:
    explicit AtTheGate(Gate& gate) : gate_(gate) {}
    bool advance() override { return gate_.is_open(); }
    int source() const override { return 0; }

   private:
    Gate& gate_;
  };
};

/// A group of one rank with its gate.
struct GatedGroup {
  std::shared_ptr<GatedBackend> backend = std::make_shared<GatedBackend>(0, 1);
  ProcessGroupPtr group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 1, std::chrono::seconds(60));

  GatedGroup() { group->add_backend(DeviceType::cpu, backend); }
  Gate& gate() const { return backend->gate; }
};

}  // namespace cohort::test
