// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/group_registry.h>
#include <cohort/log.h>
#include <cohort/torch/functional.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <utility>

namespace cohort::functional {

namespace {

ProcessGroupPtr group_of_ranks(const std::vector<int>& ranks) {
  static std::once_flag is_warned;
  std::call_once(is_warned, [] {
    log(LogLevel::warn,
        "functional collectives: a list of ranks as the group is deprecated, because several groups may have the same "
        "ranks; pass the group, its name or a mesh");
  });
  auto group = find_group_of_ranks(ranks);
  if (group == nullptr) {
    throw ValueError(fmt::format("functional collectives: this process is in no group of the ranks {}", ranks));
  }
  return group;
}

}  // namespace

GroupArgument::GroupArgument(ProcessGroupPtr group) : group_(std::move(group)) {
  if (group_ == nullptr) throw ValueError("functional collectives: the group is null");
}

GroupArgument::GroupArgument(std::string_view name) : group_(resolve_group(name)) {}

GroupArgument::GroupArgument(const std::vector<int>& ranks) : group_(group_of_ranks(ranks)) {}

void GroupArgument::refuse_dimensions(std::int64_t ndim) {
  throw AssertionError(fmt::format(
      "functional collectives: a mesh of {} dimensions has as many groups for this rank: say which dimension is meant, "
      "as {{mesh, dim}}",
      ndim));
}

}  // namespace cohort::functional
