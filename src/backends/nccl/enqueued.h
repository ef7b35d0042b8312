// SPDX-License-Identifier: BSD-3-Clause
//
// An operation that has been enqueued on the device: an event behind it on its stream shows when it is complete.
#pragma once

#include <cohort/backend.h>
#include <cohort/completion.h>
#include <cohort/error.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/cuda/objects.h"

namespace cohort::nccl {

class Enqueued final : public Completion {
 public:
  /// `stream` is the one it runs on. `is_captured` means that it is recorded into a graph, has not run, and cannot be
  /// queried.
  Enqueued(Call& call, void* stream, bool is_captured, cuda::ContextPtr context,
           std::shared_ptr<cuda::EventPool> events, bool is_timed);
  ~Enqueued() override;
  Enqueued(const Enqueued&) = delete;
  Enqueued& operator=(const Enqueued&) = delete;

  /// Called before and after the operation is enqueued on its stream.
  void record_start();
  void record_end();

  bool is_done() override;
  void order(void* stream) override;
  bool wait(Deadline deadline) override;
  std::optional<std::chrono::nanoseconds> duration() override;

  /// For the watchdog: the number under which the ranks compare collectives, 0 for anything else; the other ends of
  /// messages, of which a batch may have several.
  void set_number(std::uint64_t number) noexcept { number_ = number; }
  void add_peer(int peer) {
    if (!has_peer(peer)) peers_.push_back(peer);
  }
  std::uint64_t number() const noexcept { return number_; }
  bool has_peer(int rank) const noexcept { return std::find(peers_.begin(), peers_.end(), rank) != peers_.end(); }
  /// -1 if there are several, or none.
  int only_peer() const noexcept { return peers_.size() == 1 ? peers_.front() : -1; }

  const Call& call() const noexcept { return call_; }
  Deadline deadline() const noexcept { return deadline_; }
  void* stream() const noexcept { return stream_; }
  bool is_captured() const noexcept { return is_captured_; }
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }
  /// Ends the operation and reports it to the handler; only the first call counts.
  void end(std::exception_ptr error) noexcept;

 private:
  const cuda::Driver& driver() const { return context_->driver(); }

  const Call call_;
  const Deadline deadline_;
  void* const stream_;
  const bool is_captured_;
  std::uint64_t number_ = 0;
  std::vector<int> peers_{};
  const cuda::ContextPtr context_;
  const std::shared_ptr<cuda::EventPool> events_;
  cuda::EventPtr start_;  ///< null unless the operation is timed
  cuda::EventPtr end_;
  std::shared_ptr<CompletionHandler> handler_;  ///< called by the thread that sets has_ended_
  std::atomic<bool> has_ended_{false};
  mutable std::mutex mutex_;
  std::exception_ptr error_;  ///< protected by mutex_
};
using EnqueuedPtr = std::shared_ptr<Enqueued>;

}  // namespace cohort::nccl
