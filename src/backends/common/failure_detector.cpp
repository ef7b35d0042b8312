// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure_detector.h"

#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>

#include "core/last_error.h"
#include "core/log_format.h"
#include "core/parse.h"
#include "core/reaper.h"
#include "core/start_thread.h"
#include "store/last_will.h"

namespace cohort {

namespace {

constexpr auto ended_key = "ended";
constexpr auto left_key = "left";  // a line for each rank that has left: its number, and the error if there was one
constexpr auto leaving_key = "leaving";  // how many they are
/// The time limit for telling others that this rank gives up or leaves, when little is left that would justify waiting
/// longer.
constexpr std::chrono::seconds farewell_timeout{2};
/// How long a rank that declares a group's end waits for the store: a reachable store has the failure by then.
constexpr std::chrono::milliseconds declaring_timeout{500};

}  // namespace

std::string FailureDetector::gone_key(int rank) {
  return fmt::format("gone/{}", rank);
}

std::string FailureDetector::note_key(int rank) {
  return fmt::format("note/{}", rank);
}

std::vector<Departure> FailureDetector::left(Store& store, Deadline deadline) {
  std::vector<Departure> departures;
  if (!store.check({left_key}, deadline)) return departures;
  const auto text = store.get(left_key, deadline);
  for (const auto line : split(text, '\n')) {
    const auto number = line.substr(0, line.find(' '));
    const auto rank = parse_integer<int>(number);
    if (!rank) continue;
    departures.push_back(
        {.rank = *rank, .last_error = std::string(line.substr(std::min(line.size(), number.size() + 1)))});
  }
  return departures;
}

std::unique_ptr<FailureDetector> FailureDetector::start(const StorePtr& store, int rank, int size, Deadline deadline,
                                                        std::function<void(const Failure&)> on_end,
                                                        Store::Keys also_deleted) {
  if (tcp_store_below(store) == nullptr) return nullptr;
  auto liveness = store->clone();
  auto listening = store->clone();
  tcp_store_below(listening)->set_keepalive_timeout(keepalive_timeout);
  std::unique_ptr<FailureDetector> line(new FailureDetector(rank, size, std::move(liveness), std::move(listening),
                                                            std::move(on_end), std::move(also_deleted)));
  const Failure lost{.kind = ErrorKind::peer_lost,
                     .rank = rank,
                     .text = fmt::format("rank {} is gone: its process ended, or its host is down or cut off", rank)};
  line->liveness_->set_on_disconnect({full_key(store, ended_key), full_key(store, gone_key(rank))},
                                     {encode(lost), lost.text}, deadline, keepalive_timeout);
  line->listener_ = start_thread([&detector = *line] { detector.listen(); });
  line->at_exit_.emplace([&detector = *line] { detector.leave(); });
  return line;
}

FailureDetector::FailureDetector(int rank, int size, StorePtr liveness, StorePtr listening,
                                 std::function<void(const Failure&)> on_end, Store::Keys also_deleted)
    : rank_(rank),
      size_(size),
      on_end_(std::move(on_end)),
      also_deleted_(std::move(also_deleted)),
      liveness_store_(std::move(liveness)),
      liveness_(tcp_store_below(liveness_store_)),
      listening_store_(std::move(listening)),
      listening_(tcp_store_below(listening_store_)) {}

FailureDetector::~FailureDetector() {
  at_exit_.reset();
  late_.join_all();
  leave();
  listening_->interrupt();
  if (listener_.joinable()) join_now_or_later(std::move(listener_));
}

void FailureDetector::leave() noexcept {
  if (is_leaving_.exchange(true) || is_out_of_reach_) return;
  try {
    const auto deadline = Deadline::after(farewell_timeout);
    // The list comes first: who notices that this rank is gone finds out that it left.
    std::string line = fmt::format("{} {}", rank_, error_that_unwinds());
    std::replace(line.begin(), line.end(), '\n', ' ');
    liveness_store_->append(left_key, line + "\n", deadline);
    liveness_->set_on_disconnect({}, {}, deadline);
    if (liveness_store_->add(leaving_key, 1, deadline) == size_) delete_keys(deadline);
  } catch (const std::exception& e) {
    log_debug("a group's end could not be reported to the store: {}", e.what());
  }
}

void FailureDetector::delete_keys(Deadline deadline) {
  for (const auto* const key : {left_key, leaving_key, ended_key}) liveness_store_->delete_key(key, deadline);
  for (const auto& key : also_deleted_) liveness_->delete_key(key, deadline);
  if (!has_ended_) return;
  for (int each = 0; each < size_; ++each) liveness_store_->delete_key(note_key(each), deadline);
}

void FailureDetector::listen() {
  ::pthread_setname_np(::pthread_self(), "cohort-detector");
  try {
    const auto told = decode_failure(listening_store_->get(ended_key, Deadline::never()));
    conclude(told.value_or(Failure{.text = "a rank has ended the group, with a failure that cannot be read"}));
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
  has_ended_ = true;
  if (!is_leaving_) on_end_(failure);
}

bool FailureDetector::declare(const Failure& failure) {
  if (is_out_of_reach_) return false;
  has_ended_ = true;
  try {
    const bool is_in_time = run_with_deadline(
        [this, text = encode(failure)] {
          try {
            liveness_store_->compare_set(ended_key, "", text, farewell_timeout);
          } catch (const Error& e) {
            log_debug("the end of a group could not be reported to the other ranks: {}", e.what());
            is_out_of_reach_ = true;
          }
        },
        Deadline::after(declaring_timeout), late_);
    return is_in_time && !is_out_of_reach_;
  } catch (const Error& e) {
    log_debug("the end of a group could not be reported to the other ranks: {}", e.what());
    return false;
  }
}

}  // namespace cohort
