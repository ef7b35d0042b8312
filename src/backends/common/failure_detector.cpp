// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure_detector.h"

#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <pthread.h>

#include "core/log_format.h"
#include "core/parse.h"
#include "core/reaper.h"
#include "core/start_thread.h"
#include "store/last_will.h"

namespace cohort {

namespace {

constexpr auto ended_key = "ended";
/// The time limit for telling others that this rank gives up or leaves, when little is left that would justify waiting
/// longer.
constexpr std::chrono::seconds farewell_patience{2};
/// How long a rank that declares a group's end waits for the store: a reachable store has the failure by then.
constexpr std::chrono::milliseconds declaring_patience{500};
constexpr std::string_view reason_mark = "failure: ";

}  // namespace

std::string FailureDetector::gone_key(int rank) {
  return fmt::format("gone/{}", rank);
}

std::string encode(const Failure& failure) {
  return fmt::format("{} {} {}", static_cast<int>(failure.kind), failure.rank, failure.text);
}

Failure decode_failure(std::string_view text) {
  const auto kind = text.substr(0, text.find(' '));
  auto rest = text.substr(std::min(text.size(), kind.size() + 1));
  const auto rank = rest.substr(0, rest.find(' '));
  rest = rest.substr(std::min(rest.size(), rank.size() + 1));
  const auto number = parse_integer<int>(kind);
  for (const auto known : {ErrorKind::timeout, ErrorKind::peer_lost, ErrorKind::mismatch, ErrorKind::aborted}) {
    if (number == static_cast<int>(known)) {
      return {.kind = known, .rank = parse_integer<int>(rank).value_or(-1), .text = std::string(rest)};
    }
  }
  return {.text = std::string(text)};
}

std::string as_reason(const Failure& failure) {
  return std::string(reason_mark) + encode(failure);
}

std::optional<Failure> failure_in(std::string_view message) {
  const auto mark = message.find(reason_mark);
  if (mark == std::string_view::npos) return std::nullopt;
  return decode_failure(message.substr(mark + reason_mark.size()));
}

std::unique_ptr<FailureDetector> FailureDetector::start(const StorePtr& store, int rank, Deadline deadline,
                                                        std::function<void(const Failure&)> on_end) {
  if (tcp_store_below(store) == nullptr) return nullptr;
  std::unique_ptr<FailureDetector> line(new FailureDetector(std::move(on_end)));
  line->liveness_store_ = store->clone();
  line->liveness_ = tcp_store_below(line->liveness_store_);
  line->listening_store_ = store->clone();
  line->listening_ = tcp_store_below(line->listening_store_);
  line->listening_->notice_silence(patience);
  const Failure lost{.kind = ErrorKind::peer_lost,
                     .rank = rank,
                     .text = fmt::format("rank {} is gone: its process ended, or its host is down or cut off", rank)};
  line->liveness_->set_on_disconnect({full_key(store, ended_key), full_key(store, gone_key(rank))},
                                     {encode(lost), lost.text}, deadline, patience);
  line->listener_ = start_thread([&detector = *line] { detector.listen(); });
  return line;
}

FailureDetector::~FailureDetector() {
  late_.join_all();
  is_leaving_ = true;
  if (!is_out_of_reach_) {
    try {
      liveness_->set_on_disconnect({}, {}, farewell_patience);
    } catch (const Error& e) {
      log_debug("a group's end could not be reported to the store: {}", e.what());
    }
  }
  listening_->interrupt();
  join_now_or_later(std::move(listener_));
}

void FailureDetector::listen() {
  ::pthread_setname_np(::pthread_self(), "cohort-detector");
  try {
    conclude(decode_failure(listening_store_->get(ended_key, Deadline::never())));
  } catch (const Error& e) {
    is_out_of_reach_ = true;
    conclude(
        {.kind = ErrorKind::peer_lost,
         .text = fmt::format("the job's store cannot be reached any more: its host is down, or this one is cut off "
                             "({})",
                             e.message())});
  }
}

void FailureDetector::conclude(const Failure& failure) {
  if (!is_leaving_) on_end_(failure);
}

bool FailureDetector::declare(const Failure& failure) {
  if (is_out_of_reach_) return false;
  try {
    const bool is_in_time = run_with_deadline(
        [this, text = encode(failure)] {
          try {
            liveness_store_->compare_set(ended_key, "", text, farewell_patience);
          } catch (const Error& e) {
            log_debug("the end of a group could not be reported to the other ranks: {}", e.what());
            is_out_of_reach_ = true;
          }
        },
        Deadline::after(declaring_patience), late_);
    return is_in_time && !is_out_of_reach_;
  } catch (const Error& e) {
    log_debug("the end of a group could not be reported to the other ranks: {}", e.what());
    return false;
  }
}

}  // namespace cohort
