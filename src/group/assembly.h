// SPDX-License-Identifier: BSD-3-Clause
//
// Makes a group of processes that have agreed on its members: all of them get the group, or none does.
//
// Every member leaves a last will with the store, so that the death of one wakes the others wherever they wait. The
// outcome is one key that compare_set settles: "on" by the last member that is ready, or "off" by whoever is first to
// see a death, a failure or its deadline.
#pragma once

#include <cohort/deadline.h>
#include <cohort/process_group.h>
#include <cohort/store.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "group/group_recipe.h"

namespace cohort {

class Assembly {
 public:
  struct Members {
    std::vector<int> names{};  ///< for messages: the members' ranks in the group that they come from
    int place = 0;             ///< this process's index among them, its rank in the new group
  };

  /// `keys` are of this assembly alone, on a connection that nobody else uses; the new group keeps it. From now on the
  /// other members notice if this process dies.
  Assembly(StorePtr keys, Members members, Deadline deadline);
  /// Calls the assembly off unless it is settled.
  ~Assembly();
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  /// Waits until every member is here. Only then are all deaths noticed; `is_lost(place)` tells of those that come
  /// before, and the assembly is called off. It may be left out by members that know that others do this.
  void await_all(const std::function<bool(int place)>& is_lost);

  /// Makes this process's part of the group and waits for the others'. Null: it was called off.
  ProcessGroupPtr run(const GroupRecipe& recipe);
  /// Why it was called off.
  const std::string& why() const { return why_; }
  /// Whether it was called off because a member has died, so that trying again without that member makes sense.
  bool has_lost_a_member() const { return has_lost_; }

 private:
  enum class Cause { death, failure };
  void call_off(Cause cause, const std::string& why);
  /// Waits until a member has died or given up, and ends what this process waits for.
  void listen();
  /// Proposes the outcome and returns the one that counts.
  static std::string settle(Store& store, const std::string& proposal);
  std::string await_outcome();
  void conclude(const std::string& outcome);

  StorePtr keys_;
  StorePtr talk_;   ///< holds the last will
  StorePtr watch_;  ///< null if the store knows no last wills
  const Members members_;
  const Deadline deadline_;
  bool is_settled_ = false;
  bool has_lost_ = false;
  std::string why_;
  std::thread watcher_;
};

}  // namespace cohort
