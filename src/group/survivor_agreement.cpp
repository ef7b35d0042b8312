// SPDX-License-Identifier: BSD-3-Clause
#include "group/survivor_agreement.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/parse.h"
#include "group/request_deadline.h"

namespace cohort {

namespace {

using std::chrono::milliseconds;

/// How often a rank that waits for others looks whether they have died.
constexpr milliseconds look_every{50};
constexpr std::string_view members_mark = "members ";
constexpr std::string_view failed_mark = "failed ";

std::string key_of(const ShrinkRound& round, std::string_view what) {
  return fmt::format("shrink/{}/{}", round.number, what);
}

std::string arrival_key(const ShrinkRound& round, int rank) {
  return key_of(round, fmt::format("here/{}", rank));
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

std::vector<int> SurvivorAgreement::without_lost(std::vector<int> ranks) const {
  const auto lost = self_.lost_among(ranks);
  std::erase_if(ranks, [&](int rank) { return contains(lost, rank); });
  return ranks;
}

std::string SurvivorAgreement::await_decision(const ShrinkRound& round) {
  const auto decision = key_of(round, "decision");
  auto candidates = round.candidates;
  std::erase_if(candidates, [&](int rank) { return contains(self_.excluded, rank); });
  auto awaited = candidates;
  store_->set(arrival_key(round, self_.rank), "", request_deadline(deadline_));
  for (;;) {
    const auto soon = request_deadline(deadline_);
    if (store_->check({decision}, soon)) return store_->get(decision, soon);
    awaited = without_lost(std::move(awaited));
    std::erase_if(awaited, [&](int rank) { return store_->check({arrival_key(round, rank)}, soon); });
    if (awaited.empty()) break;
    Store::Keys keys;
    for (const int rank : awaited) keys.push_back(arrival_key(round, rank));
    try {
      store_->wait(keys, earlier(deadline_, Deadline::after(look_every)));
    } catch (const StoreTimeoutError&) {
      if (!deadline_.expired()) continue;
      const auto failure = fmt::format("{}{} {} neither died nor called shrink in time", failed_mark, awaited.front(),
                                       ranks_text(awaited));
      return store_->compare_set(decision, "", failure, request_deadline(deadline_));
    }
  }
  // A rank may have died since it arrived.
  const auto members = fmt::format("{}{}", members_mark, fmt::join(without_lost(candidates), " "));
  return store_->compare_set(decision, "", members, request_deadline(deadline_));
}

std::vector<int> SurvivorAgreement::decide(const ShrinkRound& round) {
  if (!self_.lost_among(std::vector<int>{self_.rank}).empty()) {
    throw PeerLostError(fmt::format("shrink: rank {} is itself among the lost: the store had not heard from its host "
                                    "for too long, and the others go on without it",
                                    self_.rank),
                        {.group = self_.group, .op = "shrink", .rank = self_.rank});
  }
  const auto text = await_decision(round);
  const std::string_view decided = text;
  if (decided.starts_with(failed_mark)) {
    const auto rest = decided.substr(failed_mark.size());
    const auto rank = parse_integer<int>(rest.substr(0, rest.find(' ')));
    throw OperationTimeoutError(fmt::format("shrink: {}", rest.substr(std::min(rest.find(' '), rest.size() - 1) + 1)),
                                {.group = self_.group, .op = "shrink", .rank = rank});
  }
  std::vector<int> members;
  if (decided.starts_with(members_mark)) {
    for (const auto part : split(decided.substr(members_mark.size()), ' ')) {
      if (const auto rank = parse_integer<int>(part)) members.push_back(*rank);
    }
  }
  if (!contains(members, self_.rank)) {
    throw PeerLostError(fmt::format("shrink: the other survivors ({}) have gone on without rank {}: it came too late",
                                    ranks_text(members), self_.rank),
                        {.group = self_.group, .op = "shrink", .rank = self_.rank});
  }
  return members;
}

}  // namespace cohort
