// SPDX-License-Identifier: BSD-3-Clause
//
// ProcessGroup::grow and join_group: the two sides of a growth.
#include <cohort/error.h>
#include <cohort/launch.h>
#include <cohort/new_group.h>
#include <cohort/process_group.h>
#include <cohort/rendezvous.h>

#include <fmt/format.h>

#include <algorithm>

#include "core/log_format.h"
#include "core/rank_index.h"
#include "group/assembly.h"
#include "group/group_ids.h"
#include "group/issue_notifier.h"
#include "group/join_queue.h"
#include "group/process_group_state.h"
#include "rendezvous/job_keys.h"
#include "rendezvous/schemes.h"

namespace cohort {

namespace {

using std::chrono::milliseconds;

/// Rank 0 answers every newcomer that it has claimed: with admission, or that it is to ask again.
class Newcomers {
 public:
  Newcomers(JoinQueue& queue, std::vector<JoinRequest> requests) : queue_(queue), requests_(std::move(requests)) {}
  ~Newcomers() {
    for (const auto& request : requests_) {
      if (is_seated_) return;
      try {
        queue_.defer(request);
      } catch (const Error& e) {
        log_debug("a process that wants to join could not be told to ask again: {}", e.what());
      }
    }
  }
  Newcomers(const Newcomers&) = delete;
  Newcomers& operator=(const Newcomers&) = delete;

  const std::vector<JoinRequest>& all() const { return requests_; }
  void admit(const GrowthPlan& plan) {
    is_seated_ = true;
    for (const auto& request : requests_) queue_.admit(request, plan);
  }

  bool has_died(std::size_t which) const { return queue_.has_died(requests_[which]); }

 private:
  JoinQueue& queue_;
  std::vector<JoinRequest> requests_;
  bool is_seated_ = false;
};

/// A replacement for a rank that died before the ranks began to make their first group: it takes part in the making.
bool is_for_making(const GroupMembers& members, Store& job, Deadline deadline) {
  if (members.store != nullptr) return false;
  const auto launch = find_launch(Env::read());
  return launch && launch->replacement > 0 && !job.check({group_made_key}, deadline);
}

RendezvousResult find_job(const GroupMembers& members, milliseconds timeout) {
  if (members.store != nullptr || members.rank) {
    if (members.store == nullptr || !members.rank) {
      throw ValueError("join_group: store and rank are given together or not at all");
    }
    return {.store = members.store, .rank = *members.rank};
  }
  auto found =
      env_scheme({.url = "env://", .deadline = Deadline::after(timeout), .timeout = timeout, .env = Env::read()});
  set_log_rank(found.rank);
  return found;
}

}  // namespace

ProcessGroupPtr ProcessGroup::grow(const GrowOptions& options) {
  const ErrorContext context{.group = id(), .op = "grow"};
  state_->check_process("grow");
  IssueNotifier::notify_for_host(*this, OpType::coalesced, "grow");
  const auto recipe = state_->recipe;
  for (const auto& backend : state_->distinct_backends()) {
    if (backend->capabilities().regrouping) continue;
    throw NotSupportedError(fmt::format("backend {} does not support grow: make a new group", backend->name()),
                            context);
  }
  if (recipe == nullptr || recipe->job == nullptr) {
    throw NotSupportedError(
        "grow: newcomers join a group that new_group has made, not a part of it or a merged one: grow that group",
        context);
  }
  const auto timeout = options.timeout.duration_or(this->timeout());
  const auto deadline = Deadline::after(timeout);

  // Rank 0 proposes who joins, and a broadcast in this group makes it everybody's plan.
  std::optional<JoinQueue> queue;
  std::optional<Newcomers> newcomers;
  GrowthPlan plan;
  std::string text;
  if (rank_ == 0) {
    queue.emplace(recipe->job, recipe->name);
    newcomers.emplace(*queue, queue->requests(global_ranks(), recipe->backend, options.at_least, deadline));
    if (!newcomers->all().empty()) {
      plan = {.number = queue->number_growth(), .time = timeout, .global_ranks = global_ranks()};
      for (const auto& request : newcomers->all()) plan.global_ranks.push_back(request.global_rank);
      text = plan.encode();
    }
  }
  // The others have not waited for newcomers, and give rank 0 its whole timeout for that.
  const auto told =
      GrowthPlan::decode(broadcast_bytes(text, {.timeout = timeout > no_timeout / 2 ? no_timeout : 2 * timeout}));
  if (!told) return shared_from_this();
  plan = *told;

  if (!queue) queue.emplace(recipe->job, recipe->name);
  const auto until = Deadline::after(plan.time);
  Assembly assembly(queue->assembly_keys(plan.number), {.names = plan.global_ranks, .place = rank_}, until);
  // After this each member of this group is in the assembly, which notices its death.
  barrier({.timeout = until});
  if (newcomers) {
    newcomers->admit(plan);
    assembly.await_all([&](int place) { return place >= size_ && newcomers->has_died(index_of(place - size_)); });
  }
  auto group = assembly.run(*recipe);
  if (group == nullptr) {
    log_warn("group {}: it does not grow: {}", id(), assembly.why());
    return shared_from_this();
  }
  GroupAccess::inherit(group, *this, plan.global_ranks);
  return group;
}

ProcessGroupPtr join_group(std::string_view backend, milliseconds timeout, const Device& device, const Options& options,
                           const GroupMembers& members) {
  auto recipe = std::make_shared<GroupRecipe>(recipe_for("join_group", backend, timeout, device, options));
  const auto deadline = Deadline::after(timeout);
  const auto found = find_job(members, timeout);
  if (is_for_making(members, *found.store, deadline)) {
    return new_group(backend, timeout, device, options, {.name = members.name});
  }
  recipe->name = members.name;
  recipe->job = found.store;
  for (;;) {
    std::optional<JoinQueue> queue(std::in_place, found.store, members.name);
    const auto plan = queue->ask(found.rank, recipe->backend, deadline);
    if (!plan) {
      throw OperationTimeoutError(
          fmt::format("join_group: rank {} was not admitted within {} ms: the ranks of the group call grow() for that",
                      found.rank, timeout.count()),
          {.op = "join_group", .rank = found.rank});
    }
    const auto place = std::find(plan->global_ranks.begin(), plan->global_ranks.end(), found.rank);
    if (place == plan->global_ranks.end()) throw DistributedError("join_group: the seat is not for this rank");
    Assembly assembly(queue->assembly_keys(plan->number),
                      {.names = plan->global_ranks, .place = static_cast<int>(place - plan->global_ranks.begin())},
                      Deadline::after(plan->time));
    auto group = assembly.run(*recipe);
    if (group == nullptr) {
      log_warn("joining was called off and is tried again: {}", assembly.why());
      continue;
    }
    GroupAccess::set_global_ranks(*group, plan->global_ranks);
    GroupAccess::set_recipe(*group, std::move(recipe));
    remember_group(group->id(), group);
    return group;
  }
}

}  // namespace cohort
