// SPDX-License-Identifier: BSD-3-Clause
//
// How a group was made, so that it can be made again with other members.
#pragma once

#include <cohort/deadline.h>
#include <cohort/device.h>
#include <cohort/options.h>
#include <cohort/process_group.h>
#include <cohort/store.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace cohort {

struct GroupRecipe {
  std::string backend{};  ///< as it was given to new_group
  /// Makes this rank's part of a group; called by all members at the same time. No other group uses the keys.
  std::function<ProcessGroupPtr(const StorePtr& keys, int rank, int size, Deadline deadline)> make{};
  /// The store that new_group was given or has found, without the group's own prefix. Newcomers know it too. Null if
  /// the group was made in another way: it cannot grow.
  StorePtr job{};
  std::string name{};  ///< GroupMembers::name
};

/// The recipe of new_group(). Throws ValueError in the name of `caller` if an argument is wrong.
GroupRecipe recipe_for(std::string_view caller, std::string_view backend, std::chrono::milliseconds timeout,
                       const Device& device, const Options& options);

}  // namespace cohort
