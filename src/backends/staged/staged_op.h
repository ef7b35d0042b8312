// SPDX-License-Identifier: BSD-3-Clause
//
// One operation on device memory by way of the host: its inputs are copied down behind what the user's stream has
// before it, the host's group does the operation, its outputs are copied up. Nobody waits meanwhile but who asks to.
//
// An op is prepared and begun by the thread that issued the operation; then one thread (staging_thread.h) moves it on.
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

/// What the staged ops of a group share.
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

  /// `group`: its id, for errors.
  StagedOp(Call& call, std::string group, std::shared_ptr<StagingResources> resources);
  ~StagedOp() override;
  StagedOp(const StagedOp&) = delete;
  StagedOp& operator=(const StagedOp&) = delete;

  /// A place on the host for device memory, to be copied down at the beginning, or up at the end, or both.
  std::span<std::byte> stage(const void* device, std::size_t bytes, bool goes_down, bool comes_up);
  void add(Issue issue) { issues_.push_back(std::move(issue)); }
  /// Enqueues the copies down, behind what `user_stream` has by now.
  void begin(void* user_stream);

  enum class Stage {
    leaving,    ///< copies down
    away,       ///< the host's group is at it
    returning,  ///< copies up
    ended,
  };
  Stage stage() const noexcept { return stage_.load(std::memory_order_acquire); }
  /// Moves it on, as far as that goes without waiting. One thread.
  void advance();
  /// Whether the device has nothing of it any more.
  bool is_clear() const;
  void fail(std::exception_ptr error) noexcept { end(std::move(error)); }
  /// Its memory is nobody's any more: the device may use it for good.
  void abandon();
  /// Gives everything back: a Work of it may be kept for long, and must not keep the group's memory and events.
  void release();
  /// Null while it is under way and when it went well.
  std::exception_ptr error() const;

  bool is_done() override { return stage() == Stage::ended; }
  /// Blocks until the copies up are enqueued: until then there is nothing that a stream could wait for.
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
  /// Copies and an event behind them; Piece::goes_down or comes_up.
  void copy(bool Piece::*direction, const cuda::Event& behind);
  const cuda::Driver& driver() const { return resources_->context->driver(); }

  const Call call_;
  const Deadline deadline_;
  const std::string group_;
  std::shared_ptr<StagingResources> resources_;  ///< null once it was released
  std::shared_ptr<CompletionHandler> handler_;
  std::vector<Piece> pieces_;
  std::vector<Issue> issues_;
  std::vector<Work> works_;  ///< of the thread that moves it on
  cuda::EventPtr down_;
  cuda::EventPtr up_;
  bool has_begun_ = false;
  std::atomic<bool> has_copied_up_{false};

  mutable std::mutex mutex_;
  std::condition_variable moved_;
  bool is_ending_ = false;                    ///< under mutex_
  std::atomic<Stage> stage_{Stage::leaving};  ///< changed under mutex_
  std::exception_ptr error_;                  ///< under mutex_
};
using StagedOpPtr = std::shared_ptr<StagedOp>;

}  // namespace cohort::staged
