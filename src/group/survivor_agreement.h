// SPDX-License-Identifier: BSD-3-Clause
//
// How the survivors of a group agree on who is left, through the group's store.
//
// Each survivor announces itself and waits until every other rank has done so, is known to be lost, or is to be left
// out. The first to see that proposes the list of those that are there, and compare_set makes one proposal the decision
// of the round. At its deadline a rank proposes the failure of the round instead, so that all survivors get the same
// list or the same error, however close to the deadline somebody arrives. A rank that arrives after the decision and is
// not in it is told so.
//
// A member may die after the decision: then making the group fails for all of them (assembly.h), and the next round is
// between those that the last one decided on.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "group/shrink_round.h"

namespace cohort {

class SurvivorAgreement {
 public:
  using LostAmong = std::function<std::vector<int>(std::span<const int>)>;

  struct Self {
    std::string group{};  ///< id, for errors
    int rank = 0;
    std::vector<int> excluded{};
    LostAmong lost_among{};
  };

  /// The store has keys of the group's own; nobody else waits on its connection.
  SurvivorAgreement(StorePtr store, Self self, Deadline deadline)
      : store_(std::move(store)), self_(std::move(self)), deadline_(deadline) {}

  /// The members of the new group, in this group's rank numbers, with this rank among them. Throws
  /// OperationTimeoutError if a candidate neither died nor arrived in time, and PeerLostError if the others have gone
  /// on without this rank.
  std::vector<int> decide(const ShrinkRound& round);

 private:
  std::string await_decision(const ShrinkRound& round);
  std::vector<int> without_lost(std::vector<int> ranks) const;

  StorePtr store_;
  Self self_;
  Deadline deadline_;
};

}  // namespace cohort
