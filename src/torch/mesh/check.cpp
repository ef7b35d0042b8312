// SPDX-License-Identifier: BSD-3-Clause
#include "torch/mesh/check.h"

#include <cohort/device.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace cohort::detail {

void check_mesh_ranks(const RankArray& array) {
  if (array.shape().empty()) throw ValueError("a mesh has at least one dimension");
  if (array.ranks().empty()) throw ValueError("a mesh has at least one rank");
  auto sorted = array.ranks();
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw AssertionError(fmt::format("rank {} is twice in the mesh {}", *twice, to_string(array)));
  }
}

void check_names(const std::vector<std::string>& names, std::size_t ndim) {
  if (names.empty()) return;
  if (names.size() != ndim) {
    throw Error(fmt::format("{} names ({}) for {} mesh dimensions: give one for each, or none", names.size(),
                            fmt::join(names, ", "), ndim));
  }
  for (auto it = names.begin(); it != names.end(); ++it) {
    if (it->empty()) throw Error("the name of a mesh dimension is empty");
    if (std::find(names.begin(), it, *it) != it) throw Error(fmt::format("two mesh dimensions are called \"{}\"", *it));
  }
}

void check_device_type(const std::string& device_type) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (device_type.empty() || !std::ranges::all_of(device_type, is_letter)) {
    throw Error(
        fmt::format("the device type of a mesh is \"cpu\" or \"cuda\", without an index, not \"{}\": each rank "
                    "uses the device of its group",
                    device_type));
  }
  parse_device_type(device_type);
}

void check_device_type_of(const std::string& device_type, const ProcessGroup& group) {
  const auto types = group.device_types();
  if (std::find(types.begin(), types.end(), parse_device_type(device_type)) != types.end()) return;
  std::vector<std::string_view> known;
  known.reserve(types.size());
  for (const auto each : types) known.push_back(to_string(each));
  throw Error(fmt::format("a mesh of {} over a group without a backend for it; the group has backends for {}",
                          device_type, fmt::join(known, ", ")),
              {.group = group.id()});
}

}  // namespace cohort::detail
