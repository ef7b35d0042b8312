// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/redistribute_local.h"

#include <cohort/debug_level.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>

#include "torch/dtensor/plan.h"
#include "torch/dtensor/shard_ranges.h"
#include "torch/dtensor/tell_peers.h"
#include "torch/dtensor/transitions.h"
#include "torch/functional/async_tensor.h"

namespace cohort::dtensor {

namespace {

/// The size of the step's sharded dimension before this sharding.
std::int64_t elements_at(const Transition& step, at::IntArrayRef sizes, const DeviceMesh& mesh) {
  if (!step.from.is_shard()) return 0;
  auto elements = sizes[static_cast<std::size_t>(step.from.dim())];
  for (const auto& cut : step.cuts) {
    const auto rank = (*mesh.coordinate())[static_cast<std::size_t>(cut.mesh_dim)];
    elements = shard_size(cut.shard, elements, mesh.size(cut.mesh_dim), rank);
  }
  return elements;
}

bool communicates(const Transition& step) {
  return !step.from.is_replicate();
}

void log_redistribution(std::string_view why, const at::Tensor& local, const Plan& steps, const Layout& from,
                        const Layout& to, std::size_t moved) {
  std::string text;
  for (const auto& step : steps) {
    text += fmt::format("{}{} -> {} on mesh dimension {}", text.empty() ? "" : ", ", to_string(step.from),
                        to_string(step.to), step.mesh_dim);
  }
  log(LogLevel::warn,
      fmt::format("dtensor: {} redistributes an argument {} -> {}: {} bytes ({}; the local part had {} "
                  "bytes)",
                  why, to_string(from.placements), to_string(to.placements), moved, text, local.nbytes()));
}

}  // namespace

at::Tensor redistribute_local(const at::Tensor& local, at::IntArrayRef sizes, const Layout& from, const Layout& to,
                              std::string_view why, Completion completion) {
  if (from.placements == to.placements || to.mesh.coordinate() == nullptr) return local;
  const auto& mesh = from.mesh;
  const auto steps = plan(from.placements, to.placements, mesh.shape(), sizes);
  auto result = local;
  std::size_t moved = 0;
  bool is_own = false;  // whether the result has memory of its own
  const auto last_collective = std::find_if(steps->rbegin(), steps->rend(), communicates);
  const auto begin = steps->begin();
  auto step = begin;
  try {
    for (; step != steps->end(); ++step) {
      const auto before = result.nbytes();
      const bool is_awaited = last_collective == steps->rend() || &*step != &*last_collective;
      result = perform(step->from, step->to, result, elements_at(*step, sizes, mesh), mesh.group(step->mesh_dim),
                       is_awaited ? Completion::blocking : completion);
      is_own = !step->from.is_replicate() || !step->to.is_shard() || !is_consecutive(step->to);
      if (!step->from.is_replicate()) moved += std::max(before, result.nbytes());
    }
  } catch (const std::exception& error) {
    // Behind the first collective, the peers are in the next ones, or will be.
    if (std::any_of(begin, step, communicates)) {
      for (; step != steps->end(); ++step) {
        if (communicates(*step)) {
          tell_peers(error, mesh, step->mesh_dim, "a redistribution, after other collectives of it");
        }
      }
    }
    throw;
  }
  if (!why.empty() && debug_level() == DebugLevel::detail) log_redistribution(why, local, *steps, from, to, moved);
  return is_own ? result : functional::copy_of(result);
}

}  // namespace cohort::dtensor
