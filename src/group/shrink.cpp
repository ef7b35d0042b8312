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

/// The group that the survivors have made, with their ranks in the old one. No group: this rank is excluded.
struct Shrunk {
  ProcessGroupPtr group{};
  std::vector<int> ranks{};
};

/// The excluded ranks, in order and each once.
std::vector<int> checked_excluded(const ProcessGroup& group, const std::vector<int>& excluded) {
  const std::set<int> ranks(excluded.begin(), excluded.end());
  if (!ranks.empty() && (*ranks.begin() < 0 || *ranks.rbegin() >= group.size())) {
    throw ValueError(
        fmt::format("shrink: [{}]: ranks of this group are 0 to {}", fmt::join(ranks, ", "), group.size() - 1),
        {.group = group.id(), .op = "shrink"});
  }
  return {ranks.begin(), ranks.end()};
}

/// Several backends might come to different survivors, unless there is nobody to agree with.
bool shrink_by_themselves(const std::vector<BackendPtr>& backends) {
  if (backends.size() == 1) return backends.front()->capabilities().shrinking;
  return std::ranges::all_of(backends, [](const BackendPtr& each) {
    return each->capabilities().shrinking && each->capabilities().without_peers;
  });
}

/// Throws the reason why the group cannot be made again for its survivors, if there is one, and the group stays usable.
void check_regrouping(const ProcessGroup& group, const std::vector<BackendPtr>& backends, bool has_recipe,
                      const std::vector<int>& excluded, Deadline deadline) {
  for (const auto& each : backends) {
    if (has_recipe && group.store() != nullptr && each->capabilities().regrouping) continue;
    if (!each->capabilities().shrinking) each->shrink(excluded, deadline);  // throws
    throw NotSupportedError(
        backends.size() == 1
            ? fmt::format("shrink: this group was not made by new_group, and backend {} needs that", each->name())
            : fmt::format("shrink: a group with several backends is shrunk by making it again, which backend {} "
                          "cannot do",
                          each->name()),
        {.group = group.id(), .op = "shrink"});
  }
}

Shrunk shrink_backends(const ProcessGroup& group, const BackendPtr& backend, const std::vector<int>& excluded,
                       Deadline deadline) {
  auto shrunk = backend->shrink(excluded, deadline);
  if (shrunk.backend == nullptr) return {};
  const auto name = fmt::format("shrunk[{}]", fmt::join(shrunk.ranks, ","));
  const auto store = group.store();
  auto rest = std::make_shared<ProcessGroup>(store == nullptr ? nullptr : std::make_shared<PrefixStore>(name, store),
                                             shrunk.backend->rank(), shrunk.backend->size(), group.timeout(),
                                             fmt::format("{}/{}", group.id(), name));
  for (const auto type : group.device_types()) {
    const auto of_type = group.backend(Device(type));
    rest->add_backend(type, of_type == backend ? shrunk.backend : of_type->shrink(excluded, deadline).backend);
  }
  return {.group = std::move(rest), .ranks = std::move(shrunk.ranks)};
}

/// The survivors agree through the store who they are, and make the group again.
Shrunk agree_and_make_again(const StorePtr& store, const SurvivorAgreement::Self& self, const GroupRecipe& recipe,
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

/// The same, with an error that says what to do if the store is out of reach.
Shrunk shrink_through_store(const ProcessGroup& group, const std::vector<BackendPtr>& backends,
                            const GroupRecipe& recipe, ShrinkRound& round, const std::vector<int>& excluded,
                            Deadline deadline) {
  if (std::ranges::binary_search(excluded, group.rank())) return {};
  const auto lost_among = [&backends](std::span<const int> some) {
    std::vector<int> lost;
    for (const auto& each : backends) {
      const auto more = each->lost_among(some);
      lost.insert(lost.end(), more.begin(), more.end());
    }
    return lost;
  };
  const SurvivorAgreement::Self self{
      .group = group.id(), .rank = group.rank(), .excluded = excluded, .lost_among = lost_among};
  if (round.candidates.empty()) {
    round.candidates.resize(index_of(group.size()));
    std::iota(round.candidates.begin(), round.candidates.end(), 0);
  }
  const auto out_of_reach = [&](const Error& e) {
    BackendError error(fmt::format("shrink: the group's store cannot be reached, and on backend {} the survivors agree "
                                   "through it ({}); continue from the last checkpoint in a new job, whose launcher "
                                   "(\"cohort run\") keeps the store",
                                   group.name(), e.message()),
                       {.group = group.id(), .op = "shrink", .cause = std::current_exception()});
    return error;
  };
  try {
    return agree_and_make_again(group.store(), self, recipe, round, deadline);
  } catch (const NetworkError& e) {
    throw out_of_reach(e);
  } catch (const StoreError& e) {
    throw out_of_reach(e);
  }
}

}  // namespace

ProcessGroupPtr ProcessGroup::shrink(const ShrinkOptions& options) {
  const auto excluded = checked_excluded(*this, options.excluded);
  state_->check_process("shrink");
  IssueNotifier::notify_for_host(*this, OpType::coalesced, "shrink");
  const auto backends = state_->distinct_backends();
  const auto backend = default_backend();
  const auto deadline = options.timeout.deadline_or(timeout());
  const bool by_themselves = shrink_by_themselves(backends);
  if (!by_themselves) check_regrouping(*this, backends, state_->recipe != nullptr, excluded, deadline);
  // Operations that are still running end with an error first, so that no rank waits in the old group while others
  // leave it.
  for (const auto& each : backends) each->prepare_shrink();
  const char* open = nullptr;
  state_->closed.compare_exchange_strong(open, "the group was shrunk: use the new one");
  wait_for_pending(deadline);
  const auto shrunk =
      by_themselves ? shrink_backends(*this, backend, excluded, deadline)
                    : shrink_through_store(*this, backends, *state_->recipe, state_->shrink_round, excluded, deadline);
  if (shrunk.group == nullptr) return nullptr;
  std::vector<int> global;
  for (const int each : shrunk.ranks) global.push_back(global_ranks()[index_of(each)]);
  GroupAccess::inherit(shrunk.group, *this, std::move(global));
  return shrunk.group;
}

}  // namespace cohort
