// SPDX-License-Identifier: BSD-3-Clause
//
// ProcessGroup::shrink: by the backend itself where it can, otherwise through the group's store.
#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/log_format.h"
#include "core/rank_index.h"
#include "core/run_with_deadline.h"
#include "group/assembly.h"
#include "group/group_ids.h"
#include "group/issue_notifier.h"
#include "group/process_group_state.h"
#include "group/survivor_agreement.h"

namespace cohort {

namespace {

/// A connection of its own to the group's store, which may be out of reach.
StorePtr reopen(const StorePtr& store, Deadline deadline) {
  const auto opened = std::make_shared<StorePtr>();
  if (!run_with_deadline([store, opened] { *opened = store->clone(); }, deadline)) {
    throw NetworkError("it does not answer");
  }
  return *opened;
}

/// The group that the survivors agree on through the store, with their ranks in the old group.
struct StoreShrunk {
  ProcessGroupPtr group{};
  std::vector<int> ranks{};
};

StoreShrunk shrink_through(const StorePtr& store, const SurvivorAgreement::Self& self, const GroupRecipe& recipe,
                           ShrinkRound& round, Deadline deadline) {
  const auto own = reopen(store, deadline);
  for (;; ++round.number) {
    try {
      round.candidates = SurvivorAgreement(own, self, deadline).decide(round);
    } catch (const OperationTimeoutError&) {
      ++round.number;  // all survivors got this error, and may try again
      throw;
    }
    const auto& members = round.candidates;
    const auto place = std::find(members.begin(), members.end(), self.rank) - members.begin();
    auto keys = std::make_shared<PrefixStore>(fmt::format("shrunk/{}", round.number), own->clone());
    Assembly assembly(std::move(keys), {.names = members, .place = static_cast<int>(place)}, deadline);
    assembly.await_all([&](int each) { return !self.lost_among({&members[index_of(each)], 1}).empty(); });
    if (auto group = assembly.run(recipe)) return {.group = std::move(group), .ranks = members};
    if (!assembly.has_lost_a_member()) {
      ++round.number;
      throw BackendError(
          fmt::format("shrink: the group of ranks {} could not be made: {}", fmt::join(members, ", "), assembly.why()),
          {.group = self.group, .op = "shrink"});
    }
    log_debug("group {}: shrink: {}; the others agree again", self.group, assembly.why());
  }
}

}  // namespace

ProcessGroupPtr ProcessGroup::shrink(const ShrinkOptions& options) {
  const std::set<int> excluded(options.excluded.begin(), options.excluded.end());
  if (!excluded.empty() && (*excluded.begin() < 0 || *excluded.rbegin() >= size_)) {
    throw ValueError(fmt::format("shrink: [{}]: ranks of this group are 0 to {}", fmt::join(excluded, ", "), size_ - 1),
                     {.group = id(), .op = "shrink"});
  }
  state_->check_process("shrink");
  IssueNotifier::notify_for_host(*this, OpType::coalesced, "shrink");
  const auto backends = state_->distinct_backends();
  const auto backend = default_backend();
  const auto deadline = options.timeout.deadline_or(timeout());
  const std::vector<int> out(excluded.begin(), excluded.end());
  // Several backends might come to different survivors, unless there is nobody to agree with.
  const auto can_alone = [](const BackendPtr& each) {
    return each->capabilities().shrinking && each->capabilities().without_peers;
  };
  const bool is_native = backends.size() == 1 ? backend->capabilities().shrinking
                                              : std::all_of(backends.begin(), backends.end(), can_alone);
  const auto store = this->store();
  if (!is_native) {
    for (const auto& each : backends) {
      if (state_->recipe != nullptr && store != nullptr && each->capabilities().regrouping) continue;
      // A backend that cannot shrink throws the reason here, and the group stays usable.
      if (!each->capabilities().shrinking) each->shrink(out, deadline);
      throw NotSupportedError(
          backends.size() == 1
              ? fmt::format("shrink: this group was not made by new_group, and backend {} needs that", each->name())
              : fmt::format("shrink: a group with several backends is shrunk by making it again, which backend {} "
                            "cannot do",
                            each->name()),
          {.group = id(), .op = "shrink"});
    }
  }
  // Operations that are still running end with an error first, so that no rank waits in the old group while others
  // leave it.
  for (const auto& each : backends) each->prepare_shrink();
  const char* open = nullptr;
  state_->closed.compare_exchange_strong(open, "the group was shrunk: use the new one");
  wait_for_pending(deadline);

  ProcessGroupPtr group;
  std::vector<int> ranks;
  if (is_native) {
    auto shrunk = backend->shrink(out, deadline);
    if (shrunk.backend == nullptr) return nullptr;
    ranks = std::move(shrunk.ranks);
    const auto name = fmt::format("shrunk[{}]", fmt::join(ranks, ","));
    group = std::make_shared<ProcessGroup>(store == nullptr ? nullptr : std::make_shared<PrefixStore>(name, store),
                                           shrunk.backend->rank(), shrunk.backend->size(), timeout(),
                                           fmt::format("{}/{}", id(), name));
    for (const auto type : device_types()) {
      const auto& of_type = state_->backends[static_cast<std::size_t>(type)];
      group->add_backend(type, of_type == backend ? shrunk.backend : of_type->shrink(out, deadline).backend);
    }
  } else {
    if (excluded.contains(rank_)) return nullptr;
    const SurvivorAgreement::Self self{
        .group = id(), .rank = rank_, .excluded = out, .lost_among = [&backends](std::span<const int> some) {
          std::vector<int> lost;
          for (const auto& each : backends) {
            const auto more = each->lost_among(some);
            lost.insert(lost.end(), more.begin(), more.end());
          }
          return lost;
        }};
    auto& round = state_->shrink_round;
    if (round.candidates.empty()) {
      round.candidates.resize(static_cast<std::size_t>(size_));
      std::iota(round.candidates.begin(), round.candidates.end(), 0);
    }
    const auto out_of_reach = [&](const Error& e) {
      BackendError error(
          fmt::format("shrink: the group's store cannot be reached, and on backend {} the survivors agree "
                      "through it ({}); continue from the last checkpoint in a new job, whose launcher "
                      "(\"cohort run\") keeps the store",
                      name(), e.message()),
          {.group = id(), .op = "shrink", .cause = std::current_exception()});
      return error;
    };
    try {
      auto shrunk = shrink_through(store, self, *state_->recipe, round, deadline);
      group = std::move(shrunk.group);
      ranks = std::move(shrunk.ranks);
    } catch (const NetworkError& e) {
      throw out_of_reach(e);
    } catch (const StoreError& e) {
      throw out_of_reach(e);
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    group->state_->global_ranks[i] = global_ranks()[static_cast<std::size_t>(ranks[i])];
  }
  group->set_timeout(timeout());
  group->set_group_name(group_name());
  group->set_group_desc(group_desc());
  GroupAccess::set_recipe(*group, state_->recipe);
  remember_group(group->id(), group);
  return group;
}

}  // namespace cohort
