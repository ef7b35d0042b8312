// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure_coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/abort_text.h"
#include "core/log_format.h"
#include "core/rank_index.h"

namespace cohort {

namespace {

using std::chrono::milliseconds;

/// Under load the news may be well behind the connection that it explains.
constexpr milliseconds news_timeout{3000};
constexpr milliseconds notes_timeout{500};
/// For a survivor who asks who is left. There is nothing else it could do, so it waits longer for a slow store.
constexpr milliseconds asking_timeout{5000};

/// Holds the note of a rank that has been waiting for a while, for the others to compare with.
constexpr const char* stalled_key = "stalled";

}  // namespace

FailureCoordinator::FailureCoordinator(Group group, Deadline deadline, std::function<void(const Failure&)> stop)
    : group_(std::move(group)), stop_(std::move(stop)) {
  if (group_.is_part || group_.size == 1) return;
  notes_ = group_.store->clone();
  detector_ = FailureDetector::start(group_.store, group_.rank, group_.size, deadline,
                                     [this](const Failure& failure) { end(failure); });
  const auto current = [this] {
    const std::lock_guard lock(mutex_);
    return recent_.current();
  };
  stall_watch_ = std::make_unique<StallWatch>(current, [this] { compare_with_waiting_ranks(); });
}

FailureCoordinator::~FailureCoordinator() {
  leave();
}

void FailureCoordinator::leave() {
  stall_watch_.reset();
  if (left_note_.exchange(false) && !is_over_) {
    try {
      notes_->delete_key(stalled_key, notes_timeout);
    } catch (const Error& e) {
      log_debug("a note was left in the store: {}", e.what());
    }
  }
  detector_.reset();
}

std::vector<int> FailureCoordinator::lost_among(std::span<const int> ranks) const {
  std::vector<int> lost;
  if (notes_ == nullptr) return lost;
  const auto left = FailureDetector::left(*notes_, Deadline::after(asking_timeout));
  for (const int each : ranks) {
    const bool has_left = std::ranges::any_of(left, [&](const Departure& departure) { return departure.rank == each; });
    if (has_left || notes_->check({FailureDetector::gone_key(each)}, asking_timeout)) lost.push_back(each);
  }
  return lost;
}

ErrorContext FailureCoordinator::context(const Call& call) const {
  return {.group = group_.id, .op = std::string(to_string(call.op())), .sequence = call.sequence()};
}

std::uint64_t FailureCoordinator::enter(const OpSignature& signature, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  return recent_.enter(signature, sequence);
}

void FailureCoordinator::exit(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  recent_.exit(number);
}

bool FailureCoordinator::end(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    is_over_ = true;
    over_.notify_all();
  }
  stop_(failure);
  if (failure.kind == ErrorKind::timeout || failure.kind == ErrorKind::mismatch) publish_recent_ops();
  return true;
}

void FailureCoordinator::publish_recent_ops() {
  if (notes_ == nullptr || is_alone_) return;
  const auto publish = [store = notes_, key = FailureDetector::note_key(group_.rank), note = own_note()] {
    try {
      store->clone()->set(key, note, notes_timeout);
    } catch (const Error& e) {
      log_debug("this rank's latest operations could not be published: {}", e.what());
    }
  };
  run_with_deadline(publish, Deadline::after(notes_timeout), late_);
}

std::string FailureCoordinator::own_note() {
  const std::lock_guard lock(mutex_);
  return recent_.note(group_.rank);
}

/// The first rank that waits leaves its note, and those that wait later compare theirs with it and replace it if they
/// are further: one request for each rank, as long as they agree.
void FailureCoordinator::compare_with_waiting_ranks() {
  if (is_over_ || is_alone_) return;
  const auto mine = own_note();
  try {
    constexpr int most_tries = 8;
    auto seen = notes_->compare_set(stalled_key, "", mine, notes_timeout);
    for (int tries = 0; tries < most_tries && seen != mine; ++tries) {
      const std::array both{OpNote::parse(seen), OpNote::parse(mine)};
      if (const auto mismatch = first_mismatch(both)) {
        if (detector_ != nullptr) detector_->declare(*mismatch);
        end(*mismatch);
        return;
      }
      if (both[0].newest() >= both[1].newest()) return;
      seen = notes_->compare_set(stalled_key, seen, mine, notes_timeout);
    }
    left_note_ = left_note_ || seen == mine;
  } catch (const Error& e) {
    log_debug("what this rank waits in could not be compared with the others: {}", e.what());
  }
}

void FailureCoordinator::diagnose() {
  const std::lock_guard turn(diagnosis_mutex_);
  {
    const std::lock_guard lock(mutex_);
    const bool is_open = failure_->kind == ErrorKind::timeout || failure_->kind == ErrorKind::mismatch;
    if (is_examined_ || failure_->is_explained || !is_open || notes_ == nullptr) return;
    is_examined_ = true;
    if (is_alone_) {
      failure_->text += ", and the job's store does not answer";
      return;
    }
  }
  const auto answers = std::make_shared<std::vector<std::string>>(static_cast<std::size_t>(group_.size));
  const auto ask = [answers, store = notes_] {
    const auto until = Deadline::after(notes_timeout);
    for (std::size_t each = 0; each < answers->size(); ++each) {
      try {
        (*answers)[each] = store->get(FailureDetector::note_key(static_cast<int>(each)), until);
      } catch (const StoreTimeoutError&) {  // that rank has not published a note
      } catch (const Error& e) {
        return log_debug("the other ranks' latest operations could not be read: {}", e.what());
      }
    }
  };
  if (!run_with_deadline(ask, Deadline::after(notes_timeout + milliseconds(200)), late_)) {
    const std::lock_guard lock(mutex_);
    failure_->text += ", and the job's store does not answer";
    return;
  }
  std::vector<OpNote> notes;
  std::vector<int> missing;
  std::vector<std::string> places;
  for (int each = 0; each < group_.size; ++each) {
    const auto& answer = (*answers)[index_of(each)];
    const auto note = OpNote::parse(answer);
    if (!note.is_in) {
      missing.push_back(each);
      places.push_back(answer.empty() ? fmt::format("rank {} has not published what it is doing", each)
                       : note.ops.empty()
                           ? fmt::format("rank {} has not called any operation", each)
                           : fmt::format("rank {} last called {}", each, note.ops.rbegin()->second.text));
    }
    notes.push_back(note);
  }
  auto mismatch = first_mismatch(notes);
  const std::lock_guard lock(mutex_);
  if (mismatch) {
    failure_ = std::move(mismatch);
  } else if (failure_->kind == ErrorKind::mismatch) {
    return;  // what the part found is all that is known
  } else if (missing.empty()) {
    failure_->text += ": all ranks have entered it";
  } else {
    failure_->rank = missing.front();
    failure_->text += fmt::format("; missing: rank{} {}; {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                                  fmt::join(places, "; "));
  }
}

Failure FailureCoordinator::explain() {
  diagnose();
  const std::lock_guard lock(mutex_);
  return *failure_;
}

void FailureCoordinator::throw_end(const Call& call) {
  broken_.refuse(explain(), context(call), call);
}

std::optional<Failure> FailureCoordinator::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<Departure> FailureCoordinator::departures() {
  if (detector_ == nullptr || is_alone_) return {};
  const auto found = std::make_shared<std::vector<Departure>>();
  const auto ask = [found, store = notes_] {
    try {
      *found = FailureDetector::left(*store, Deadline::after(notes_timeout));
    } catch (const Error& e) {
      log_debug("which ranks have left could not be read: {}", e.what());
    }
  };
  return run_with_deadline(ask, Deadline::after(notes_timeout), late_) ? *found : std::vector<Departure>();
}

void FailureCoordinator::await_news(const Call& call) {
  if (detector_ != nullptr) {
    std::unique_lock lock(mutex_);
    over_.wait_for(lock, news_timeout, [this] { return failure_.has_value(); });
  }
  check(call);
}

void FailureCoordinator::fail(const Failure& failure, const Call& call) {
  // The other ranks are told first: they may know more, and may have published a failure before this one.
  if (detector_ != nullptr && !detector_->declare(failure)) is_alone_ = true;
  end(failure);
  throw_end(call);
}

void FailureCoordinator::miss_deadline(const Call& call) {
  fail({.kind = ErrorKind::timeout,
        .text = fmt::format("{} #{} did not end within {} ms", to_string(call.op()), call.sequence(),
                            call.timeout().count())},
       call);
}

void FailureCoordinator::abort(std::string_view reason) {
  const Failure failure{.kind = ErrorKind::aborted, .rank = group_.rank, .text = abort_text(group_.rank, reason)};
  if (detector_ != nullptr && !is_over_) detector_->declare(failure);
  end(failure);
}

}  // namespace cohort
