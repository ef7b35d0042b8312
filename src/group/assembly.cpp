// SPDX-License-Identifier: BSD-3-Clause
#include "group/assembly.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "core/log_format.h"
#include "core/rank_index.h"
#include "core/start_thread.h"
#include "group/request_deadline.h"
#include "store/last_will.h"

namespace cohort {

namespace {

using std::chrono::milliseconds;

/// A member whose host has been silent for this long counts as lost.
constexpr milliseconds member_timeout{4000};
/// For requests that wait for nobody, after the deadline or on the way out.
constexpr milliseconds settling_timeout{2000};
/// How often a member that waits for others looks whether they have died.
constexpr milliseconds look_every{50};
/// Making the group may fail here because of a death that the store reports a moment later.
constexpr milliseconds news_timeout{1000};

constexpr auto alarm_key = "alarm";  ///< set by last wills, and by members that give up
constexpr auto outcome_key = "outcome";
constexpr auto go_on = "on";
constexpr std::string_view lost_mark = "lost ";
constexpr std::string_view failed_mark = "failed ";

std::string arrival_key(int place) {
  return fmt::format("here/{}", place);
}

std::string ready_key(int place) {
  return fmt::format("ready/{}", place);
}

}  // namespace

Assembly::Assembly(StorePtr keys, Members members, Deadline deadline)
    : keys_(std::move(keys)), talk_(keys_->clone()), members_(std::move(members)), deadline_(deadline) {
  const auto name = members_.names.at(index_of(members_.place));
  if (auto* const store = tcp_store_below(talk_)) {
    store->set_on_disconnect({full_key(talk_, alarm_key)}, {fmt::format("{}rank {} has died", lost_mark, name)},
                             request_deadline(deadline_), member_timeout);
    watch_ = keys_->clone();
    watcher_ = start_thread([this] { listen(); });
  }
  talk_->set(arrival_key(members_.place), "", request_deadline(deadline_));
}

Assembly::~Assembly() {
  if (!is_settled_) call_off(Cause::failure, fmt::format("rank {} gave up", members_.names[index_of(members_.place)]));
  if (watch_ == nullptr) return;
  try {
    tcp_store_below(talk_)->set_on_disconnect({}, {}, settling_timeout);
  } catch (const Error& e) {
    log_debug("a last will could not be withdrawn: {}", e.what());
  }
  tcp_store_below(watch_)->interrupt();
  watcher_.join();
}

void Assembly::listen() {
  ::pthread_setname_np(::pthread_self(), "cohort-assembly");
  try {
    const auto alarm = watch_->get(alarm_key, Deadline::never());
    if (settle(*watch_, alarm) != go_on) tcp_store_below(keys_)->interrupt();
  } catch (const Error& e) {
    log_debug("nobody watches over the members of a new group any more: {}", e.what());
  }
}

std::string Assembly::settle(Store& store, const std::string& proposal) {
  return store.compare_set(outcome_key, "", proposal, settling_timeout);
}

void Assembly::await_all(const std::function<bool(int place)>& is_lost) {
  std::vector<int> awaited(members_.names.size());
  std::iota(awaited.begin(), awaited.end(), 0);
  for (;;) {
    Store::Keys keys;
    for (const int place : awaited) keys.push_back(arrival_key(place));
    try {
      return talk_->wait(keys, earlier(deadline_, Deadline::after(look_every)));
    } catch (const StoreTimeoutError&) {
      const auto soon = request_deadline(deadline_);
      if (talk_->check({outcome_key}, soon)) return conclude(talk_->get(outcome_key, soon));
      std::erase_if(awaited, [&](int place) { return talk_->check({arrival_key(place)}, soon); });
    }
    for (const int place : awaited) {
      const auto name = members_.names[index_of(place)];
      if (is_lost(place)) return call_off(Cause::death, fmt::format("rank {} has died", name));
      if (deadline_.expired()) return call_off(Cause::failure, fmt::format("rank {} did not come in time", name));
    }
  }
}

void Assembly::call_off(Cause cause, const std::string& why) {
  try {
    const auto text = fmt::format("{}{}", cause == Cause::death ? lost_mark : failed_mark, why);
    conclude(settle(*talk_, text));
    talk_->set(alarm_key, text, settling_timeout);
  } catch (const Error& e) {
    is_settled_ = true;
    why_ = fmt::format("{} ({})", why, e.message());
  }
}

void Assembly::conclude(const std::string& outcome) {
  is_settled_ = true;
  if (outcome == go_on) return;
  const std::string_view text = outcome;
  has_lost_ = text.starts_with(lost_mark);
  why_ = text.substr(std::min(text.size(), has_lost_ ? lost_mark.size() : failed_mark.size()));
}

std::string Assembly::await_outcome() {
  Store::Keys all;
  for (int each = 0; each < static_cast<int>(members_.names.size()); ++each) all.push_back(ready_key(each));
  talk_->set(all[index_of(members_.place)], "", request_deadline(deadline_));
  // Only the last to be ready finds all keys, and settles the outcome; with several at the same time it does not matter
  // whose proposal counts.
  if (talk_->check(all, request_deadline(deadline_))) return settle(*talk_, go_on);
  try {
    return talk_->get(outcome_key, deadline_);
  } catch (const StoreTimeoutError&) {
    std::vector<int> missing;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!talk_->check({all[i]}, settling_timeout)) missing.push_back(members_.names[i]);
    }
    return settle(*talk_, fmt::format("{}not all members were ready in time; missing: {}", failed_mark,
                                      fmt::join(missing, ", ")));
  }
}

ProcessGroupPtr Assembly::run(const GroupRecipe& recipe) {
  if (is_settled_) return nullptr;
  ProcessGroupPtr group;
  try {
    group = recipe.make(keys_, members_.place, static_cast<int>(members_.names.size()), deadline_);
  } catch (const Error& e) {
    try {
      conclude(talk_->get(outcome_key, news_timeout));
    } catch (const StoreTimeoutError&) {
      call_off(Cause::failure, fmt::format("rank {}: {}", members_.names[index_of(members_.place)], e.message()));
    }
    return nullptr;
  }
  const auto outcome = await_outcome();
  conclude(outcome);
  if (outcome != go_on) talk_->set(alarm_key, outcome, settling_timeout);
  return outcome == go_on ? group : nullptr;
}

}  // namespace cohort
