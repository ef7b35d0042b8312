// SPDX-License-Identifier: BSD-3-Clause
#include "torch/mesh/groups.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "core/rank_index.h"

namespace cohort::detail {

namespace {

/// A fake group has nobody to agree with, and its collectives may be forbidden (error_on_collective).
bool has_peers(const ProcessGroup& world) {
  return world.size() > 1 && world.name() != "fake";
}

bool is_given(const MeshBackend& backend) {
  return backend.backend || backend.options;
}

/// For comparing calls: equal options have equal texts. Handles belong to one rank, and only their presence counts.
std::string text_of(const Options& options);

struct OptionText {
  std::string operator()(const OptionValue::Handle& handle) const { return handle == nullptr ? "no handle" : "handle"; }
  std::string operator()(const Options& options) const { return text_of(options); }
  std::string operator()(std::chrono::milliseconds duration) const { return fmt::format("{} ms", duration.count()); }
  std::string operator()(const std::vector<std::int64_t>& list) const {
    return fmt::format("{{{}}}", fmt::join(list, ", "));
  }
  template <class T>
  std::string operator()(const T& value) const {
    return fmt::format("{}", value);
  }
};

std::string text_of(const Options& options) {
  std::vector<std::string> entries;
  for (const auto& [key, value] : options.entries()) {
    entries.push_back(fmt::format("{}: {}", key, std::visit(OptionText(), value.variant())));
  }
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

bool is_whole(const std::vector<int>& part, const ProcessGroup& world) {
  if (part.size() != index_of(world.size())) return false;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (part[index_of(rank)] != rank) return false;
  }
  return true;
}

}  // namespace

void compare_calls(ProcessGroup& world, const std::string& call, const std::exception_ptr& refused) {
  if (has_peers(world)) {
    std::string mine = call;
    try {
      if (refused) std::rethrow_exception(refused);
    } catch (const std::exception& e) {
      mine += fmt::format(", which failed: {}", e.what());
    }
    const auto calls = world.all_gather_bytes(mine);
    const auto other = std::find_if(calls.begin(), calls.end(), [&](const auto& each) { return each != calls[0]; });
    if (!refused && other != calls.end()) {
      const auto rank = static_cast<int>(other - calls.begin());
      throw MismatchError(fmt::format("the ranks disagree about a mesh: rank 0 called {}, but rank {} called {}",
                                      calls[0], rank, *other),
                          {.group = world.id(), .op = "init_device_mesh", .rank = rank});
    }
  }
  if (refused) std::rethrow_exception(refused);
}

void check_override(const MeshBackend& given, const ProcessGroup& world) {
  const auto backend = given.backend.value_or("fake");
  if (world.name() != "fake" || backend == "fake") return;
  throw Error(
      fmt::format("backend_override: the ranks of a fake group do not exist, so that none can be made on {}: "
                  "override its options only",
                  backend));
}

std::vector<MeshBackend> overrides_by_index(const MeshBackends& given, const std::vector<std::string>& names,
                                            std::size_t ndim, const ProcessGroup& world) {
  std::vector<MeshBackend> overrides(ndim);
  for (const auto& [dim, backend] : given) {
    std::size_t index = ndim;
    std::string text;
    if (const auto* const name = std::get_if<std::string>(&dim)) {
      index = static_cast<std::size_t>(std::find(names.begin(), names.end(), *name) - names.begin());
      text = fmt::format("\"{}\"", *name);
    } else {
      const auto number = std::get<std::int64_t>(dim);
      if (number >= -static_cast<std::int64_t>(ndim) && number < static_cast<std::int64_t>(ndim)) {
        index = static_cast<std::size_t>(number < 0 ? number + static_cast<std::int64_t>(ndim) : number);
      }
      text = std::to_string(number);
    }
    if (index >= ndim) {
      throw Error(fmt::format("backend_override: the mesh has no dimension {}: it has {} dimensions{}{}", text, ndim,
                              names.empty() ? "" : ", ", fmt::join(names, ", ")));
    }
    if (!is_given(backend))
      throw Error(fmt::format("backend_override: dimension {}: neither a backend nor options", text));
    if (is_given(overrides[index])) {
      throw Error(fmt::format("backend_override: dimension {} is given twice, by index and by name", index));
    }
    check_override(backend, world);
    overrides[index] = backend;
  }
  return overrides;
}

std::string to_text(const MeshBackend& override) {
  if (!is_given(override)) return {};
  return fmt::format(", backend {}{}", override.backend.value_or(""),
                     override.options ? text_of(*override.options) : std::string());
}

std::string to_text(const MeshBackends& overrides) {
  std::string text;
  for (const auto& [dim, backend] : overrides) {
    const auto* const name = std::get_if<std::string>(&dim);
    text +=
        fmt::format(", {}{}", name != nullptr ? *name : std::to_string(std::get<std::int64_t>(dim)), to_text(backend));
  }
  return text;
}

void make_group(const MeshRoot& root, MeshAxis& axis, std::size_t number, const MeshBackend& backend) {
  auto& world = *root.world;
  std::vector<std::vector<int>> parts;
  for (const auto& copy : copies_of(axis.offsets, std::ssize(root.ranks))) {
    auto& part = parts.emplace_back();
    part.reserve(copy.size());
    for (const auto position : copy) part.push_back(root.ranks_of_world[static_cast<std::size_t>(position)]);
  }
  if (!is_given(backend) && is_whole(parts.front(), world)) {
    axis.group = root.world;
    return;
  }
  const PartitionOptions options{
      .description = axis.name.empty() ? fmt::format("mesh_dim_{}", number) : fmt::format("mesh_{}", axis.name),
      .backend = backend.backend,
      .options = backend.options};
  const auto make = [&] { axis.group = world.partition(parts, options); };
  if (has_peers(world)) {
    // A rank on which this fails would leave the others with a group that waits for it.
    world.all_ok(make);
  } else {
    make();
  }
}

}  // namespace cohort::detail
