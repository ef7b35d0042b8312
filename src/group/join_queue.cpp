// SPDX-License-Identifier: BSD-3-Clause
#include "group/join_queue.h"

#include <cohort/error.h>
#include <cohort/prefix_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/log_format.h"
#include "core/parse.h"
#include "group/group_ids.h"
#include "store/last_will.h"

namespace cohort {

namespace {

using std::chrono::milliseconds;

/// A newcomer whose host has been silent for this long counts as lost.
constexpr milliseconds keepalive_timeout{4000};
/// A newcomer that has drawn a ticket says at once what it wants, unless it has died.
constexpr milliseconds request_timeout{1000};
/// How long a group waits for a request that another one of its name has served meanwhile, so that it never comes.
constexpr milliseconds overlooked_for{100};

constexpr auto tickets_key = "tickets";
constexpr auto served_key = "served";
constexpr std::string_view admitted_mark = "seat ";
constexpr std::string_view refused_mark = "refused ";
constexpr auto again = "again";
constexpr auto withdrawn_mark = "withdrawn";

std::string request_key(std::int64_t ticket) {
  return fmt::format("request/{}", ticket);
}
std::string claim_key(std::int64_t ticket) {
  return fmt::format("claim/{}", ticket);
}
std::string answer_key(std::int64_t ticket) {
  return fmt::format("answer/{}", ticket);
}
std::string gone_key(std::int64_t ticket) {
  return fmt::format("gone/{}", ticket);
}

}  // namespace

std::string GrowthPlan::encode() const {
  return fmt::format("{} {} {}", number, time.count(), fmt::join(global_ranks, " "));
}

std::optional<GrowthPlan> GrowthPlan::decode(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto part : split(text, ' ')) numbers.push_back(parse_integer<std::int64_t>(part).value_or(-1));
  if (numbers.size() < 3) throw DistributedError(fmt::format("grow: \"{}\" is not a plan", text));
  GrowthPlan plan{.number = numbers[0], .time = milliseconds(numbers[1])};
  for (std::size_t i = 2; i < numbers.size(); ++i) plan.global_ranks.push_back(static_cast<int>(numbers[i]));
  return plan;
}

JoinQueue::JoinQueue(const StorePtr& job, const std::string& name)
    : store_(std::make_shared<PrefixStore>(fmt::format("join_queue/{}", name), job->clone())), mark_(random_id()) {}

JoinQueue::~JoinQueue() {
  if (will_.empty()) return;
  try {
    set_will({}, "");
  } catch (const Error& e) {
    log_debug("a last will could not be withdrawn: {}", e.what());
  }
}

void JoinQueue::set_will(Store::Keys keys, const std::string& value) {
  auto* const tcp = tcp_store_below(store_);
  if (tcp == nullptr) return;
  Store::Keys full;
  for (const auto& key : keys) full.push_back(full_key(store_, key));
  tcp->set_on_disconnect(full, Store::Values(full.size(), value), store_timeout, keepalive_timeout);
  will_ = std::move(keys);
}

StorePtr JoinQueue::assembly_keys(std::int64_t growth) {
  return std::make_shared<PrefixStore>(fmt::format("growth/{}", growth), store_->clone());
}

std::optional<std::string> JoinQueue::await_answer(std::int64_t ticket, Deadline deadline) {
  try {
    return store_->get(answer_key(ticket), deadline);
  } catch (const StoreTimeoutError&) {
    if (store_->compare_set(claim_key(ticket), "", withdrawn_mark, store_timeout) == withdrawn_mark)
      return std::nullopt;
  }
  // The ticket was taken, so that the answer may come any moment.
  try {
    return store_->get(answer_key(ticket), store_timeout);
  } catch (const StoreTimeoutError&) {
    store_->set(gone_key(ticket), "", store_timeout);
    return std::nullopt;
  }
}

std::optional<GrowthPlan> JoinQueue::ask(int global_rank, const std::string& backend, Deadline deadline) {
  while (!deadline.expired()) {
    const auto ticket = store_->add(tickets_key, 1, store_timeout);
    set_will({gone_key(ticket)}, "");
    store_->set(request_key(ticket), fmt::format("{} {}", global_rank, backend), store_timeout);
    const auto text = await_answer(ticket, deadline);
    if (!text) return std::nullopt;
    for (const auto& key : {request_key(ticket), claim_key(ticket), answer_key(ticket)}) {
      store_->delete_key(key, store_timeout);
    }
    const std::string_view answer = *text;
    if (answer.starts_with(refused_mark)) {
      throw ValueError(fmt::format("join_group: {}", answer.substr(refused_mark.size())), {.op = "join_group"});
    }
    if (answer.starts_with(admitted_mark)) return GrowthPlan::decode(text->substr(admitted_mark.size()));
  }
  return std::nullopt;
}

void JoinQueue::answer(std::int64_t ticket, const std::string& text) {
  store_->set(answer_key(ticket), text, store_timeout);
}

std::optional<JoinRequest> JoinQueue::examine(std::int64_t ticket, const std::vector<int>& taken,
                                              const std::string& backend) {
  JoinRequest request{.ticket = ticket};
  if (has_died(request) || !claim(ticket)) return std::nullopt;
  std::string text;
  try {
    text = store_->get(request_key(ticket), request_timeout);
  } catch (const StoreTimeoutError&) {
    defer(request);
    return std::nullopt;
  }
  const auto blank = std::min(text.find(' '), text.size() - 1);
  request.global_rank = parse_integer<int>(std::string_view(text).substr(0, blank)).value_or(-1);
  request.backend = text.substr(blank + 1);
  std::string why;
  if (std::find(taken.begin(), taken.end(), request.global_rank) != taken.end()) {
    why = fmt::format("rank {} is held by a process that is a member of the group or joins it", request.global_rank);
  } else if (request.global_rank < 0) {
    why = fmt::format("rank {} is not a rank", request.global_rank);
  } else if (request.backend != backend) {
    why = fmt::format("this process gave backend \"{}\", the group was made with \"{}\"", request.backend, backend);
  }
  if (!why.empty()) {
    answer(ticket, fmt::format("{}{}", refused_mark, why));
    return std::nullopt;
  }
  return request;
}

/// From then on it cannot withdraw, and no other group of this name that grows at the same time can take it.
bool JoinQueue::claim(std::int64_t ticket) {
  const auto without = will_;
  auto with = without;
  with.push_back(answer_key(ticket));
  set_will(std::move(with), again);
  if (store_->compare_set(claim_key(ticket), "", mark_, store_timeout) == mark_) return true;
  set_will(without, again);
  return false;
}

std::vector<JoinRequest> JoinQueue::requests(const std::vector<int>& taken, const std::string& backend, int at_least,
                                             Deadline deadline) {
  auto held = taken;
  std::vector<JoinRequest> waiting;
  for (;;) {
    const auto tickets = store_->add(tickets_key, 0, store_timeout);
    auto served = store_->add(served_key, 0, store_timeout);
    for (; served < tickets; ++served) {
      const auto request = examine(served + 1, held, backend);
      if (request) {
        held.push_back(request->global_rank);
        waiting.push_back(*request);
      }
      // Another group of this name may be as far.
      store_->compare_set(served_key, std::to_string(served), std::to_string(served + 1), store_timeout);
    }
    if (static_cast<int>(waiting.size()) >= at_least) break;
    try {
      store_->wait({request_key(served + 1)}, earlier(deadline, Deadline::after(overlooked_for)));
    } catch (const StoreTimeoutError&) {
      if (deadline.expired()) break;
    }
  }
  std::erase_if(waiting, [this](const JoinRequest& request) { return has_died(request); });
  std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a.global_rank < b.global_rank; });
  return waiting;
}

void JoinQueue::admit(const JoinRequest& request, const GrowthPlan& plan) {
  answer(request.ticket, fmt::format("{}{}", admitted_mark, plan.encode()));
}

void JoinQueue::defer(const JoinRequest& request) {
  answer(request.ticket, again);
}

bool JoinQueue::has_died(const JoinRequest& request) {
  return store_->check({gone_key(request.ticket)}, store_timeout);
}

}  // namespace cohort
