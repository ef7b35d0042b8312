// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/staged_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/immortal.h"

namespace cohort::staged {

StagedOp::StagedOp(Call& call, std::string group, std::shared_ptr<StagingResources> resources)
    : call_(call.detached()),
      deadline_(call.deadline()),
      group_(std::move(group)),
      resources_(std::move(resources)),
      handler_(call.on_stream()->handler),
      down_(resources_->events.take()),
      up_(resources_->events.take()) {}

StagedOp::~StagedOp() {
  release();
}

void StagedOp::release() {
  const std::lock_guard lock(mutex_);
  if (resources_ == nullptr) return;
  for (auto& piece : pieces_) resources_->pinned.give_back(std::move(piece.host));
  pieces_.clear();
  resources_->events.give_back(std::move(down_));
  resources_->events.give_back(std::move(up_));
  issues_.clear();
  works_.clear();
  resources_.reset();
}

std::span<std::byte> StagedOp::stage(const void* device, std::size_t bytes, bool goes_down, bool comes_up) {
  if (bytes == 0) return {};
  auto& piece = pieces_.emplace_back(Piece{.device = cuda::address_of(device),
                                           .bytes = bytes,
                                           .host = resources_->pinned.take(bytes),
                                           .goes_down = goes_down,
                                           .comes_up = comes_up});
  return {piece.host->data(), bytes};
}

void StagedOp::copy(bool Piece::*direction, const cuda::Event& behind) {
  auto* const stream = resources_->stream.get();
  for (const auto& piece : pieces_) {
    if (!(piece.*direction)) continue;
    const auto host = cuda::address_of(piece.host->data());
    const bool is_down = direction == &Piece::goes_down;
    cuda::check(driver(),
                driver().copy_async(is_down ? host : piece.device, is_down ? piece.device : host, piece.bytes, stream),
                "cuMemcpyAsync");
  }
  cuda::check(driver(), driver().event_record(behind.get(), stream), "cuEventRecord");
}

void StagedOp::begin(void* user_stream) {
  const cuda::Current current(*resources_->context);
  // The event behind the copies also shows that the user's stream has reached this point: only then may the result of a
  // receive be copied to the device.
  cuda::check(driver(), driver().event_record(down_->get(), user_stream), "cuEventRecord");
  cuda::check(driver(), driver().stream_wait_event(resources_->stream.get(), down_->get(), 0), "cuStreamWaitEvent");
  copy(&Piece::goes_down, *down_);
  has_begun_ = true;
}

bool StagedOp::is_through(const cuda::Event& event) const {
  const cuda::BesideCaptures beside(driver());
  const auto result = driver().event_query(event.get());
  if (result == cuda::not_ready) return false;
  cuda::check(driver(), result, "cuEventQuery");
  return true;
}

void StagedOp::advance() {
  try {
    if (stage() == Stage::leaving) leave();
    if (stage() == Stage::away) come_back();
    if (stage() == Stage::returning) check_arrived();
  } catch (...) {
    end(std::current_exception());
  }
}

void StagedOp::leave() {
  if (!is_through(*down_)) {
    if (!deadline_.expired()) return;
    miss_deadline("its stream did not reach it");
  }
  for (const auto& issue : issues_) works_.push_back(issue());
  become(Stage::away);
}

void StagedOp::come_back() {
  if (!std::all_of(works_.begin(), works_.end(), [](const Work& work) { return work.is_completed(); })) return;
  for (const auto& work : works_) {
    if (const auto error = work.exception()) return end(error);
  }
  if (std::none_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.comes_up; })) {
    return end(nullptr);
  }
  const cuda::Current current(*resources_->context);
  has_copied_up_ = true;
  copy(&Piece::comes_up, *up_);
  become(Stage::returning);
}

void StagedOp::check_arrived() {
  if (is_through(*up_)) return end(nullptr);
  if (!deadline_.expired()) return;
  miss_deadline("the device did not take the result");
}

void StagedOp::miss_deadline(std::string_view what) const {
  throw OperationTimeoutError(
      fmt::format("{}: {} within {} ms", to_string(call_.op()), what, call_.timeout().count()),
      {.group = group_, .op = std::string(to_string(call_.op())), .sequence = call_.sequence()});
}

bool StagedOp::is_clear() const {
  if (!has_begun_) return true;
  const auto has_left = [this](const cuda::Event& event) {
    const cuda::BesideCaptures beside(driver());
    return driver().event_query(event.get()) != cuda::not_ready;  // a device that has failed does not use it either
  };
  return std::all_of(works_.begin(), works_.end(), [](const Work& work) { return work.is_completed(); }) &&
         has_left(*down_) && (!has_copied_up_ || has_left(*up_));
}

void StagedOp::abandon() {
  static std::mutex mutex;
  static Immortal<std::vector<PinnedPtr>> kept;
  const std::lock_guard lock(mutex);
  for (auto& piece : pieces_) kept->push_back(std::move(piece.host));
  pieces_.clear();
}

void StagedOp::become(Stage stage) {
  const std::lock_guard lock(mutex_);
  stage_.store(stage, std::memory_order_release);
  moved_.notify_all();
}

void StagedOp::end(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_ending_, true)) return;
  }
  // The handler is called and released before anyone who waits continues, because it may hold the last reference to a
  // whole group.
  if (const auto handler = std::move(handler_)) handler->ended(error);
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  stage_.store(Stage::ended, std::memory_order_release);
  moved_.notify_all();
}

std::exception_ptr StagedOp::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void StagedOp::order(void* stream) {
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [this] { return stage() >= Stage::returning; });  // the operation's deadline bounds this wait
  if (error_) std::rethrow_exception(error_);
  if (stage() == Stage::ended) return;
  const cuda::Current current(*resources_->context);
  cuda::check(driver(), driver().stream_wait_event(stream, up_->get(), 0), "cuStreamWaitEvent");
}

bool StagedOp::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return is_done(); };
  if (deadline.is_never()) {
    moved_.wait(lock, is_over);
    return true;
  }
  return moved_.wait_until(lock, deadline.when(), is_over);
}

}  // namespace cohort::staged
