// SPDX-License-Identifier: BSD-3-Clause
//
// One operation on device memory by way of the host: its inputs are copied to the host behind what the user's stream
// contains, the host's group performs the operation, and its outputs are copied back. Nobody blocks in the meantime
// unless they ask to.
//
// The thread that issues an operation prepares and begins it; from then on one thread (staging_thread.h) advances it.
#pragma once

#include <cohort/backend.h>
#include <cohort/completion.h>
#include <cohort/error.h>
#include <cohort/work.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/objects.h"
#include "backends/staged/pinned.h"

namespace cohort::staged {

/// What the staged operations of a group share.
struct StagingResources {
  explicit StagingResources(const cuda::ContextPtr& its_context)
      : context(its_context), stream(its_context, false), events(its_context, false), pinned(its_context) {}
  const cuda::ContextPtr context;
  const cuda::Stream stream;  ///< for all copies
  cuda::EventPool events;
  PinnedPool pinned;
};

class StagedOp final : public Completion {
 public:
  /// Issues an operation on the host's group, without waiting for it.
  using Issue = std::function<Work()>;

  /// `group` is the id of the group, for errors.
  StagedOp(Call& call, std::string group, std::shared_ptr<StagingResources> resources);
  ~StagedOp() override;
  StagedOp(const StagedOp&) = delete;
  StagedOp& operator=(const StagedOp&) = delete;

  /// A host buffer for device memory, which is copied down at the beginning, up at the end, or both.
  std::span<std::byte> stage(const void* device, std::size_t bytes, bool goes_down, bool comes_up);
  void add(Issue issue) { issues_.push_back(std::move(issue)); }
  /// Enqueues the copies to the host, behind what `user_stream` contains at this point.
  void begin(void* user_stream);

  enum class Stage {
    leaving,    ///< copying to the host
    away,       ///< the host's group performs the operation
    returning,  ///< copying to the device
    ended,
  };
  Stage stage() const noexcept { return stage_.load(std::memory_order_acquire); }
  /// Advances the operation as far as possible without blocking. Called by one thread.
  void advance();
  /// Whether the device no longer uses any of its memory.
  bool is_clear() const;
  void fail(std::exception_ptr error) noexcept { end(std::move(error)); }
  /// Gives up its memory, which the device may go on using: it is never freed.
  void abandon();
  /// Releases all resources: a Work may be kept for long, and must not keep the group's memory and events.
  void release();
  /// Null while the operation is in progress and if it succeeded.
  std::exception_ptr error() const;

  bool is_done() override { return stage() == Stage::ended; }
  /// Blocks until the copies to the device are enqueued: before that, there is nothing that a stream could wait for.
  void order(void* stream) override;
  bool wait(Deadline deadline) override;

 private:
  struct Piece {
    cuda::Address device = 0;
    std::size_t bytes = 0;
    PinnedPtr host{};
    bool goes_down = false;
    bool comes_up = false;
  };

  [[noreturn]] void miss_deadline(std::string_view what) const;
  void leave();
  void come_back();
  void check_arrived();
  void end(std::exception_ptr error) noexcept;
  void become(Stage stage);
  bool is_through(const cuda::Event& event) const;
  /// Enqueues the copies of one direction (Piece::goes_down or comes_up) and an event behind them.
  void copy(bool Piece::*direction, const cuda::Event& behind);
  const cuda::Driver& driver() const { return resources_->context->driver(); }

  const Call call_;
  const Deadline deadline_;
  const std::string group_;
  std::shared_ptr<StagingResources> resources_;  ///< null once released
  std::shared_ptr<CompletionHandler> handler_;
  std::vector<Piece> pieces_;
  std::vector<Issue> issues_;
  std::vector<Work> works_;  ///< used only by the thread that advances it
  cuda::EventPtr down_;
  cuda::EventPtr up_;
  bool has_begun_ = false;
  std::atomic<bool> has_copied_up_{false};

  mutable std::mutex mutex_;
  std::condition_variable moved_;
  bool is_ending_ = false;                    ///< protected by mutex_
  std::atomic<Stage> stage_{Stage::leaving};  ///< changed under mutex_
  std::exception_ptr error_;                  ///< protected by mutex_
};
using StagedOpPtr = std::shared_ptr<StagedOp>;

}  // namespace cohort::staged
