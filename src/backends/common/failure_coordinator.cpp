// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure_coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/log_format.h"
#include "core/rank_index.h"

namespace cohort {

namespace {

using std::chrono::milliseconds;

/// Under load the news may be well behind the connection that it explains.
constexpr milliseconds news_patience{3000};
constexpr milliseconds notes_patience{500};

/// "in 123 all_reduce #3", "out 123 broadcast #2", "out 0 "
struct Note {
  bool is_in = false;
  std::string digest{};
  std::string text{};

  static Note parse(const std::string& from) {
    const auto first = from.find(' ');
    const auto second = from.find(' ', first + 1);
    if (first == std::string::npos || second == std::string::npos) return {};
    return {.is_in = from.substr(0, first) == "in",
            .digest = from.substr(first + 1, second - first - 1),
            .text = from.substr(second + 1)};
  }
};

}  // namespace

FailureCoordinator::FailureCoordinator(Group group, Deadline deadline, std::function<void(const Failure&)> stop)
    : group_(std::move(group)), stop_(std::move(stop)) {
  if (group_.is_part || group_.size == 1) return;
  notes_ = group_.store->clone();
  detector_ = FailureDetector::start(group_.store, group_.rank, group_.size, deadline,
                                     [this](const Failure& failure) { end(failure); });
}

FailureCoordinator::~FailureCoordinator() {
  leave();
}

void FailureCoordinator::leave() {
  detector_.reset();
}

ErrorContext FailureCoordinator::context(const Call& call) const {
  return {.group = group_.id, .op = std::string(to_string(call.op())), .sequence = call.sequence()};
}

void FailureCoordinator::enter(const OpSignature& signature, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  last_ = signature;
  last_sequence_ = sequence;
  is_in_ = true;
}

void FailureCoordinator::exit() {
  const std::lock_guard lock(mutex_);
  is_in_ = false;
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
  if (failure.kind == ErrorKind::timeout) publish_current_op();
  return true;
}

void FailureCoordinator::publish_current_op() {
  if (notes_ == nullptr || is_alone_) return;
  std::string note;
  {
    const std::lock_guard lock(mutex_);
    note = fmt::format("{} {} {}", is_in_ ? "in" : "out", last_ ? last_->digest(last_sequence_) : 0,
                       last_ ? fmt::format("{} #{}", to_string(*last_), last_sequence_) : "");
  }
  const auto publish = [store = notes_, key = FailureDetector::note_key(group_.rank), note] {
    try {
      store->clone()->set(key, note, notes_patience);
    } catch (const Error& e) {
      log_debug("this rank's current operation could not be published: {}", e.what());
    }
  };
  run_with_deadline(publish, Deadline::after(notes_patience), late_);
}

void FailureCoordinator::diagnose_timeout() {
  const std::lock_guard turn(diagnosis_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (is_examined_ || failure_->kind != ErrorKind::timeout || notes_ == nullptr) return;
    is_examined_ = true;
    if (is_alone_) {
      failure_->text += ", and the job's store does not answer";
      return;
    }
  }
  const auto answers = std::make_shared<std::vector<std::string>>(static_cast<std::size_t>(group_.size));
  const auto ask = [answers, store = notes_] {
    const auto patience = Deadline::after(notes_patience);
    for (std::size_t each = 0; each < answers->size(); ++each) {
      try {
        (*answers)[each] = store->get(FailureDetector::note_key(static_cast<int>(each)), patience);
      } catch (const StoreTimeoutError&) {  // that rank has not published a note
      } catch (const Error& e) {
        return log_debug("the other ranks' current operations could not be read: {}", e.what());
      }
    }
  };
  if (!run_with_deadline(ask, Deadline::after(notes_patience + milliseconds(200)), late_)) {
    const std::lock_guard lock(mutex_);
    failure_->text += ", and the job's store does not answer";
    return;
  }
  std::vector<std::optional<Note>> notes;
  for (const auto& answer : *answers)
    notes.push_back(answer.empty() ? std::nullopt : std::optional(Note::parse(answer)));
  std::vector<int> missing;
  std::vector<std::string> places;
  int first_in = -1;
  std::optional<Failure> mismatch;
  for (int each = 0; each < group_.size; ++each) {
    const auto& note = notes[index_of(each)];
    if (note && note->is_in) {
      if (first_in < 0) first_in = each;
      const auto& other = *notes[static_cast<std::size_t>(first_in)];
      if (!mismatch && note->digest != other.digest) {
        mismatch = Failure{.kind = ErrorKind::mismatch,
                           .rank = each,
                           .text = describe_mismatch(each, note->text, first_in, other.text)};
      }
      continue;
    }
    missing.push_back(each);
    places.push_back(!note                ? fmt::format("rank {} has not published what it is doing", each)
                     : note->text.empty() ? fmt::format("rank {} has not called any operation", each)
                                          : fmt::format("rank {} last called {}", each, note->text));
  }
  const std::lock_guard lock(mutex_);
  if (mismatch) {
    failure_ = std::move(mismatch);
  } else if (missing.empty()) {
    failure_->text += ": all ranks have entered it";
  } else {
    failure_->rank = missing.front();
    failure_->text += fmt::format("; missing: rank{} {}; {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                                  fmt::join(places, "; "));
  }
}

void FailureCoordinator::throw_end(const Call& call) {
  diagnose_timeout();
  Failure failure;
  {
    const std::lock_guard lock(mutex_);
    failure = *failure_;
  }
  broken_.refuse(std::move(failure), context(call), call);
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
      *found = FailureDetector::left(*store, Deadline::after(notes_patience));
    } catch (const Error& e) {
      log_debug("which ranks have left could not be read: {}", e.what());
    }
  };
  return run_with_deadline(ask, Deadline::after(notes_patience), late_) ? *found : std::vector<Departure>();
}

void FailureCoordinator::await_news(const Call& call) {
  if (detector_ != nullptr) {
    std::unique_lock lock(mutex_);
    over_.wait_for(lock, news_patience, [this] { return failure_.has_value(); });
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
  const Failure failure{
      .kind = ErrorKind::aborted,
      .rank = group_.rank,
      .text = fmt::format("rank {} aborted the group{}{}", group_.rank, reason.empty() ? "" : ": ", reason)};
  if (detector_ != nullptr && !is_over_) detector_->declare(failure);
  end(failure);
}

}  // namespace cohort
