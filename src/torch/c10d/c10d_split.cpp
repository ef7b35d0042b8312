// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/c10d_split.h"

#include <cohort/error.h>
#include <cohort/process_group.h>

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

namespace {

/// Templates, so that what a version does not have can be asked for.
template <class Group>
concept Splits = requires(Group group, const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  group.splitGroup(ranks, timeout, std::nullopt, std::string(), std::nullopt);
};

template <class Group>
bool backend_can_split(Group& group, at::DeviceType type) {
  if constexpr (Splits<Group>) {
    return group.getBackend(type)->supportsSplitting();
  } else {
    return false;
  }
}

template <class Group>
c10::intrusive_ptr<Group> split(Group& group, const BackendSplit& part, const std::string& name) {
  if constexpr (Splits<Group>) {
    return group.splitGroup(part.ranks, part.timeout.duration_or(ProcessGroup::default_timeout), std::nullopt, name,
                            std::nullopt);
  } else {
    return {};
  }
}

}  // namespace

bool can_split(c10d::ProcessGroup& group, at::Device device) {
  return backend_can_split(group, device.type());
}

c10::intrusive_ptr<c10d::ProcessGroup> split_in_c10d(c10d::ProcessGroup& group, at::Device device,
                                                     const BackendSplit& part) {
  if (!can_split(group, device)) {
    throw NotSupportedError(
        "split_group: this group is one of c10d's, whose backend does not split: make a group of these ranks with "
        "c10d, and "
        "give it to from_c10d; DeviceMesh::from_group makes a mesh out of several");
  }
  // A group with several backends is split once for each of them, so the names differ.
  return split(group, part, fmt::format("{}/{}", part.id, device.str()));
}

}  // namespace cohort
