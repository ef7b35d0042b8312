// SPDX-License-Identifier: BSD-3-Clause
#include "model/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace cohort::model {

namespace {

constexpr std::size_t stack_bytes = std::size_t{256} * 1024;

// If every thread waits in a loop, each gets this many rounds to stop spinning and do something else.
constexpr std::uint32_t idle_pauses_until_stuck = 256;

thread_local Execution* execution_in_progress = nullptr;

}  // namespace

Fiber& FiberPool::thread(std::size_t index) {
  while (threads_.size() <= index) threads_.push_back(std::make_unique<Fiber>(stack_bytes));
  return *threads_[index];
}

void FiberPool::abandon() {
  // Never destroyed: what the dead stacks still point to stays reachable, so that a leak checker reports nothing.
  static auto* const graveyard = std::make_unique<std::vector<std::unique_ptr<Fiber>>>().release();
  std::move(threads_.begin(), threads_.end(), std::back_inserter(*graveyard));
  threads_.clear();
}

Execution::Execution(const Options& options, Chooser& chooser, FiberPool& fibers)
    : options_(options), chooser_(chooser), fibers_(fibers) {
  if (execution_in_progress != nullptr) throw std::logic_error("an execution is in progress: explore() does not nest");
  execution_in_progress = this;
}

Execution::~Execution() {
  execution_in_progress = nullptr;
}

Execution& Execution::current() {
  if (execution_in_progress == nullptr)
    throw std::logic_error("model::Atomic and the like exist inside explore() only");
  return *execution_in_progress;
}

std::optional<std::string> Execution::run(const Setup& setup) {
  threads_.resize(1);
  trace_.name_thread("main");
  try {
    setup(program_);
    add_threads();
    run_threads();
    if (!failure_ && program_.after_) program_.after_();
  } catch (const Abandoned&) {
  }
  if (failure_) fibers_.abandon();
  return failure_;
}

void Execution::add_threads() {
  if (program_.threads_.size() >= max_threads) {
    throw std::logic_error(fmt::format("{} threads: the model takes {}", program_.threads_.size(), max_threads - 1));
  }
  for (const auto& thread : program_.threads_) {
    trace_.name_thread(thread.name);
    threads_.emplace_back().spurious_wakeups = options_.spurious_wakeups;
  }
}

Fiber& Execution::run_thread(ThreadId thread) {
  std::string thrown;
  try {
    program_.threads_[thread - 1].body();
  } catch (const std::exception& error) {
    thrown = fmt::format("{} threw: {}", trace_.thread(thread), error.what());
  }
  if (!thrown.empty()) fail(std::move(thrown));  // here, because a fiber does not switch inside a catch block
  self().state = State::finished;
  running_ = starting_ ? main_thread : pick();
  return fiber(running_);
}

void Execution::run_threads() {
  // What a thread does before its first operation does not affect others, so the order of starts is not a decision.
  starting_ = true;
  for (ThreadId thread = 1; thread < threads_.size(); ++thread) {
    memory_.synchronize(main_thread, thread);
    fiber(thread).assign([this, thread]() -> Fiber& { return run_thread(thread); });
    running_ = thread;
    fibers_.home().switch_to(fiber(thread));
    running_ = main_thread;
    if (failure_) return;
  }
  starting_ = false;
  hand_over();
  running_ = main_thread;
  for (ThreadId thread = 1; thread < threads_.size(); ++thread) memory_.synchronize(thread, main_thread);
}

void Execution::fail(std::string message) {
  failure_ = std::move(message);
  if (running_ == main_thread) throw Abandoned{};
  Fiber& abandoned = fiber(running_);
  running_ = main_thread;
  abandoned.switch_to(fibers_.home());
  std::terminate();
}

void Execution::arrive() {
  if (running_ == main_thread) return;
  if (starting_) {
    fiber(running_).switch_to(fibers_.home());
  } else {
    hand_over();
  }
  if (++steps_ > options_.max_steps) {
    fail(
        fmt::format("more than {} steps: a loop without pause(), threads that keep each other busy, or a limit too low",
                    options_.max_steps));
  }
  for (auto& other : threads_) other.pauses_since_step_of[running_] = 0;
  if (self().state == State::paused) {
    self().state = State::ready;
    self().reads.clear();
  }
}

void Execution::hand_over() {
  const ThreadId next = pick();
  if (next == running_) return;
  Fiber& leaving = fiber(running_);
  running_ = next;
  leaving.switch_to(fiber(next));
}

ThreadId Execution::pick() {
  find_candidates();
  if (candidates_.empty()) return pick_idle();
  const bool goes_on = candidates_.front() == running_ && self().state == State::ready;
  if (goes_on && options_.preemption_bound && preemptions_ >= *options_.preemption_bound) return running_;
  if (candidates_.size() == 1) return candidates_.front();
  ++thread_decisions_;
  const ThreadId next = candidates_[accept(chooser_.choose_thread(candidates_))];
  if (goes_on && next != running_) ++preemptions_;
  return next;
}

/// The threads that may continue, the running one first, so that the first execution of a search has the fewest
/// switches.
void Execution::find_candidates() {
  willing_.clear();
  for (ThreadId thread = 1; thread < threads_.size(); ++thread) {
    const auto state = threads_[thread].state;
    if (state == State::ready || (state == State::paused && has_news(threads_[thread]))) willing_.push_back(thread);
  }
  candidates_.clear();
  for (const ThreadId thread : willing_) {
    if (threads_[thread].state == State::paused && is_behind_in_turn(threads_[thread], willing_)) continue;
    candidates_.push_back(thread);
  }
  const auto running = std::find(candidates_.begin(), candidates_.end(), running_);
  if (running != candidates_.end()) std::rotate(candidates_.begin(), running, running + 1);
}

/// Whether another round of its loop could show the thread something that it has not seen.
bool Execution::has_news(const Thread& thread) const {
  return thread.idle_pauses <= options_.free_pauses || read_something_old(thread);
}

bool Execution::read_something_old(const Thread& thread) const {
  return std::any_of(thread.reads.begin(), thread.reads.end(),
                     [&](const Read& read) { return read.store != memory_.newest(read.location); });
}

/// Fairness: a thread that waits in a loop lets the others take a step now and then, even if its loop stores something.
bool Execution::is_behind_in_turn(const Thread& thread, const std::vector<ThreadId>& willing) const {
  return std::any_of(willing.begin(), willing.end(),
                     [&](ThreadId other) { return thread.pauses_since_step_of[other] > options_.free_pauses; });
}

/// No thread has anything new. A loop that spins for a while and then sleeps must get there, so the spinners continue
/// in turn for a while; the main thread continues if all threads have finished.
ThreadId Execution::pick_idle() {
  ThreadId least_idle = main_thread;
  bool all_finished = true;
  for (ThreadId thread = 1; thread < threads_.size(); ++thread) {
    const auto& candidate = threads_[thread];
    all_finished = all_finished && candidate.state == State::finished;
    if (candidate.state != State::paused || candidate.idle_pauses >= idle_pauses_until_stuck) continue;
    if (least_idle == main_thread || candidate.idle_pauses < threads_[least_idle].idle_pauses) least_idle = thread;
  }
  if (least_idle == main_thread && !all_finished) fail("deadlock: " + describe_waiting());
  return least_idle;
}

std::size_t Execution::decide(std::size_t count) {
  return count == 1 ? 0 : accept(chooser_.choose(count));
}

std::size_t Execution::accept(std::optional<std::size_t> chosen) {
  if (!chosen) fail("the program did not do the same again: decisions can be replayed only if nothing else varies");
  decisions_.push_back(*chosen);
  return *chosen;
}

LocationId Execution::add_atomic(Bits initial) {
  return memory_.add_atomic(initial);
}

LocationId Execution::add_plain() {
  return memory_.add_plain();
}

void Execution::note_read(LocationId location, StoreIndex store) {
  self().reads.push_back({.location = location, .store = store});
  count_stale(location, store != memory_.newest(location));
}

bool Execution::may_read_old(LocationId location) {
  const auto& counts = self().stale_reads;
  return location >= counts.size() || counts[location] < options_.stale_reads;
}

void Execution::count_stale(LocationId location, bool stale) {
  auto& counts = self().stale_reads;
  if (counts.size() <= location) counts.resize(location + std::size_t{1});
  counts[location] = stale ? counts[location] + 1 : 0;
}

Bits Execution::load(LocationId location, std::memory_order order) {
  arrive();
  const StoreIndex newest = memory_.newest(location);
  const StoreIndex oldest = may_read_old(location) ? memory_.oldest_readable(running_, location, order) : newest;
  const auto store = static_cast<StoreIndex>(newest - decide(newest - oldest + std::size_t{1}));
  memory_.load(running_, location, store, order);
  note_read(location, store);
  const Bits value = memory_.value(location, store);
  Event event{
      .thread = running_, .operation = "load", .place = Place{.location = location}, .value = value, .order = order};
  if (store != newest) event.newest = memory_.value(location, newest);
  trace_.add(event);
  return value;
}

void Execution::store(LocationId location, Bits value, std::memory_order order) {
  arrive();
  memory_.store(running_, location, value, order);
  ++stores_;
  trace_.add(
      {.thread = running_, .operation = "store", .place = Place{.location = location}, .value = value, .order = order});
}

Bits Execution::modify(LocationId location, const char* operation, detail::Change change, Bits operand,
                       std::memory_order order) {
  arrive();
  const Bits before = memory_.value(location, memory_.newest(location));
  const Bits value = change(before, operand);
  memory_.modify(running_, location, value, order);
  ++stores_;
  note_read(location, memory_.newest(location));
  trace_.add({.thread = running_,
              .operation = operation,
              .place = Place{.location = location},
              .value = value,
              .before = before,
              .order = order});
  return before;
}

bool Execution::compare_exchange(LocationId location, Bits& expected, Bits desired, std::memory_order success,
                                 std::memory_order failure, bool weak) {
  arrive();
  const StoreIndex newest = memory_.newest(location);
  const bool matches = memory_.value(location, newest) == expected;
  // The outcomes: the newest store, which can succeed; then failures, which are loads and may be out of date.
  std::vector<StoreIndex> outcomes{newest};
  if (may_read_old(location)) {
    if (matches && weak) outcomes.push_back(newest);
    for (StoreIndex store = newest; store-- > memory_.oldest_readable(running_, location, failure);) {
      if (memory_.value(location, store) != expected) outcomes.push_back(store);
    }
  }
  const std::size_t chosen = decide(outcomes.size());
  const bool exchanged = matches && chosen == 0;
  Event event{.thread = running_, .operation = "compare_exchange", .place = Place{.location = location}};
  if (exchanged) {
    memory_.modify(running_, location, desired, success);
    ++stores_;
    note_read(location, memory_.newest(location));
    event.value = desired;
    event.before = expected;
    event.order = success;
  } else {
    memory_.load(running_, location, outcomes[chosen], failure);
    self().reads.push_back({.location = location, .store = outcomes[chosen]});
    count_stale(location, chosen != 0);
    expected = memory_.value(location, outcomes[chosen]);
    event.value = expected;
    event.order = failure;
    event.remark = matches && outcomes[chosen] == newest ? "failed for no reason" : "failed";
    if (outcomes[chosen] != newest) event.newest = memory_.value(location, newest);
  }
  trace_.add(event);
  return exchanged;
}

void Execution::fence(std::memory_order order) {
  // Acquire and release fences only change what the thread itself knows.
  if (order == std::memory_order_seq_cst) arrive();
  memory_.fence(running_, order);
  trace_.add({.thread = running_, .operation = "fence", .order = order});
}

void Execution::access_plain(LocationId location, bool write) {
  const Place place{.atomic = false, .location = location};
  const std::size_t event = trace_.add({.thread = running_, .operation = write ? "write" : "read", .place = place});
  const auto conflict = memory_.access_plain(running_, location, write, event);
  if (!conflict) return;
  fail(fmt::format("data race on {}: {} by {} (event {}) and {} by {} (event {}) are not ordered", trace_.place(place),
                   conflict->write ? "write" : "read", trace_.thread(conflict->thread), conflict->event,
                   write ? "write" : "read", trace_.thread(running_), event));
}

void Execution::pause() {
  // Two pauses with nothing between them: the loop reads nothing, so there must be a switch here.
  if (self().state == State::paused) arrive();
  auto& thread = self();
  if (read_something_old(thread)) {
    thread.idle_pauses = 0;
  } else {
    thread.idle_pauses = thread.stores_at_pause == stores_ ? thread.idle_pauses + 1 : 1;
  }
  thread.stores_at_pause = stores_;
  for (ThreadId other = 1; other < threads_.size(); ++other) {
    if (other != running_) ++thread.pauses_since_step_of[other];
  }
  // The switch happens at the next operation.
  thread.state = State::paused;
  trace_.add({.thread = running_, .operation = "pause"});
}

void Execution::futex_wait(LocationId word, Bits expected) {
  arrive();
  const StoreIndex newest = memory_.newest(word);
  const Bits value = memory_.value(word, newest);
  memory_.load(running_, word, newest, std::memory_order_relaxed);
  note_read(word, newest);
  Event event{.thread = running_, .operation = "futex_wait", .place = Place{.location = word}, .value = value};
  if (value != expected) {
    event.remark = "does not sleep";
    trace_.add(event);
    return;
  }
  if (running_ == main_thread) fail("main would sleep for ever");
  if (self().spurious_wakeups > 0 && decide(2) == 1) {
    --self().spurious_wakeups;
    event.remark = "returns for no reason";
    trace_.add(event);
    return;
  }
  event.remark = "sleeps";
  trace_.add(event);
  self().state = State::asleep;
  self().sleeps_on = word;
  arrive();
  trace_.add({.thread = running_, .operation = "wakes up"});
}

void Execution::futex_wake(LocationId word) {
  arrive();
  bool woke = false;
  for (auto& thread : threads_) {
    if (thread.state != State::asleep || thread.sleeps_on != word) continue;
    thread.state = State::ready;
    woke = true;
  }
  trace_.add({.thread = running_,
              .operation = "futex_wake",
              .place = Place{.location = word},
              .remark = woke ? "" : "nobody sleeps"});
}

std::string Execution::describe_waiting() const {
  std::string out;
  for (ThreadId thread = 1; thread < threads_.size(); ++thread) {
    const auto& waiting = threads_[thread];
    if (waiting.state == State::finished) continue;
    if (!out.empty()) out += "; ";
    out += trace_.thread(thread);
    if (waiting.state == State::asleep) {
      const auto word = trace_.place({.location = waiting.sleeps_on});
      out += fmt::format(" sleeps on {}, which is {}", word,
                         number(memory_.value(waiting.sleeps_on, memory_.newest(waiting.sleeps_on))));
      continue;
    }
    out += " spins";
    for (const auto& read : waiting.reads) {
      out += fmt::format(", sees {} = {}", trace_.place({.location = read.location}),
                         number(memory_.value(read.location, read.store)));
    }
  }
  return out;
}

}  // namespace cohort::model
