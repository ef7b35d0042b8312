// SPDX-License-Identifier: BSD-3-Clause
#include "observe/recorder.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "observe/stack_frames.h"

namespace cohort::observe {

namespace {

thread_local std::uint32_t thread_number = 0;

void ask_for_thread_number() noexcept {
  // The thread that continues in a forked child has another id there.
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { thread_number = 0; });
  static_cast<void>(registered);
  thread_number = static_cast<std::uint32_t>(::gettid());
}

/// The kernel's id of this thread, which is asked for once.
std::uint32_t this_thread() noexcept {
  if (thread_number == 0) ask_for_thread_number();
  return thread_number;
}

/// Not inlined, so that the common case needs no stack space for a call stack.
[[gnu::noinline]] std::uint64_t write_with_callers(Ring& ring, const Event& event, const Origin& origin) noexcept {
  const auto stack = callers();
  return ring.write(event, origin, {stack.addresses.data(), stack.count});
}

}  // namespace

void Recorder::reset_all() {
  const std::lock_guard lock(mutex_);
  epoch_start_ = ring_.next();
  forget_old_groups();
}

std::size_t Recorder::size() {
  const std::lock_guard lock(mutex_);
  return visible_records().size();
}

Snapshot Recorder::snapshot() {
  const std::lock_guard lock(mutex_);
  forget_old_groups();
  Snapshot snapshot{.records = visible_records(),
                    .first_position = epoch_start_,
                    .dropped = ring_.dropped(),
                    .scale = clock_.scale()};
  for (const auto& [number, state] : groups_) {
    snapshot.groups.emplace(number, GroupSnapshot{number, state->info, state->enqueued.get(), state->started.get(),
                                                  state->completed.get()});
  }
  return snapshot;
}

std::shared_ptr<RecordedGroup> Recorder::add(GroupInfo info) {
  auto state = std::make_shared<RecordedGroup>();
  state->info = std::move(info);
  int none = -1;
  first_rank_.compare_exchange_strong(none, state->info.global_rank(state->info.rank), std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  forget_old_groups();
  state->number = next_group_++;
  groups_.emplace(state->number, state);
  return state;
}

void Recorder::remove(RecordedGroup& state) {
  const std::lock_guard lock(mutex_);
  state.is_live = false;
  state.last_position = ring_.next();
  if (!state.is_used.load(std::memory_order_relaxed)) groups_.erase(state.number);
}

/// Forgets groups that have been destroyed and have no records left.
void Recorder::forget_old_groups() {
  const auto next = ring_.next();
  const auto oldest = std::max(epoch_start_, next - std::min<std::uint64_t>(next, ring_.capacity()));
  std::erase_if(
      groups_, [oldest](const auto& group) { return !group.second->is_live && group.second->last_position <= oldest; });
}

GroupTrace::GroupTrace(GroupInfo info, Recorder& recorder)
    : recorder_(recorder), state_(recorder.add(std::move(info))) {}

GroupTrace::~GroupTrace() {
  recorder_.remove(*state_);
}

void GroupTrace::set_name(std::string name) {
  const std::lock_guard lock(recorder_.mutex_);
  state_->info.name = std::move(name);
}
void GroupTrace::set_description(std::string description) {
  const std::lock_guard lock(recorder_.mutex_);
  state_->info.description = std::move(description);
}

void GroupTrace::begin(const Event& event, RecordId& id) noexcept {
  const Origin origin{ticks(), state_->number, this_thread()};
  id.sequence = event.is_p2p ? -1 : event.collective_sequence;
  id.elements = event.input.elements != 0 ? event.input.elements : event.output.elements;
  id.op = event.op;
  if (!event.is_p2p) {
    const Progress progress{id.sequence, id.elements, id.op};
    state_->enqueued.set(progress);
    if (event.starts_at_once) state_->started.set(progress);
    if (event.ends_at_once) state_->completed.set(progress);
  }
  if (!state_->is_used.load(std::memory_order_relaxed)) state_->is_used.store(true, std::memory_order_relaxed);
  auto& ring = recorder_.ring_;
  id.position = ring.has_frames() ? write_with_callers(ring, event, origin) : ring.write(event, origin, {});
}

void GroupTrace::started(const RecordId& id) noexcept {
  if (id.sequence >= 0) state_->started.set({id.sequence, id.elements, id.op});
  recorder_.ring_.note(id.position, Stage::started, ticks());
}

void GroupTrace::completed(const RecordId& id) noexcept {
  if (id.sequence >= 0) state_->completed.set({id.sequence, id.elements, id.op});
  recorder_.ring_.note(id.position, Stage::completed, ticks());
}

void GroupTrace::failed(const RecordId& id) noexcept {
  recorder_.ring_.note(id.position, Stage::failed, ticks());
}

}  // namespace cohort::observe
