// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/parallelize.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <string_view>

#include "torch/parallelize/module_tensors.h"

namespace cohort {

namespace {

/// "blocks.*.mix" matches "blocks.3.mix". The outermost module has no name, which "*" does not match.
bool matches(std::string_view pattern, std::string_view name) {
  for (;;) {
    const auto pattern_end = std::min(pattern.find('.'), pattern.size());
    const auto name_end = std::min(name.find('.'), name.size());
    const auto pattern_part = pattern.substr(0, pattern_end);
    const auto name_part = name.substr(0, name_end);
    if (pattern_part == "*" ? name_part.empty() : pattern_part != name_part) return false;
    if (pattern_end == pattern.size() || name_end == name.size()) {
      return pattern_end == pattern.size() && name_end == name.size();
    }
    pattern.remove_prefix(pattern_end + 1);
    name.remove_prefix(name_end + 1);
  }
}

Placement placement_for(const ModuleTensor& tensor, ParallelStyle style) {
  if (style == ParallelStyle::replicate) return Replicate();
  const bool is_colwise = style == ParallelStyle::colwise;
  if (dynamic_cast<torch::nn::LinearImpl*>(tensor.module) != nullptr) {
    if (tensor.own_name == "bias") return is_colwise ? Placement(Shard(0)) : Placement(Replicate());
    return Shard(is_colwise ? 0 : 1);
  }
  if (dynamic_cast<torch::nn::EmbeddingImpl*>(tensor.module) != nullptr) return Shard(is_colwise ? 1 : 0);
  throw ValueError(fmt::format("parallelize_module: \"{}\" is a {}, which has no {} style; Linear and Embedding have",
                               tensor.module_name, tensor.module->name(),
                               is_colwise ? "column-parallel" : "row-parallel"));
}

void check_plan(const torch::nn::Module& module, const ParallelPlan& plan) {
  auto names = module.named_modules({}, false).keys();
  names.emplace_back();  // the module itself
  for (const auto& [pattern, style] : plan) {
    const auto is_match = [&, &text = pattern](const std::string& name) { return matches(text, name); };
    if (std::none_of(names.begin(), names.end(), is_match)) {
      throw ValueError(fmt::format("parallelize_module: no module is called \"{}\"; there are \"{}\"", pattern,
                                   fmt::join(names, "\", \"")));
    }
  }
}

/// Replaces every tensor; all of them are made before any is replaced.
template <class PlacementsOf>
void replace_all(const std::vector<ModuleTensor>& tensors, const DeviceMesh& mesh, const ParallelizeOptions& options,
                 PlacementsOf&& placements_of) {
  std::vector<Placements> placements;
  for (const auto& each : tensors) {
    if (is_dtensor(*each.handles[0])) {
      throw Error(fmt::format("\"{}\" is distributed already: a module can be distributed once", each.name));
    }
    placements.push_back(placements_of(each));
  }
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    made.push_back(distribute_tensor(*tensors[i].handles[0], mesh, placements[i], options.distribute));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (auto* handle : tensors[i].handles) *handle = made[i];
  }
}

}  // namespace

void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options) {
  if (mesh.ndim() != 1) {
    throw Error(
        fmt::format("parallelize_module: the mesh has {} dimensions; give the one for tensor parallelism, such as "
                    "mesh[\"tp\"]",
                    mesh.ndim()));
  }
  check_plan(module, plan);
  replace_all(parameters_of(module, options.members), mesh, options, [&](const ModuleTensor& tensor) -> Placements {
    for (const auto& [pattern, style] : plan) {
      if (matches(pattern, tensor.module_name)) return {placement_for(tensor, style)};
    }
    return {Replicate()};
  });
}

void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                       const std::function<Placements(const std::string& name, const at::Tensor& tensor)>& partition,
                       const ParallelizeOptions& options) {
  replace_all(parameters_of(module, options.members), mesh, options, [&](const ModuleTensor& tensor) {
    return partition ? partition(tensor.name, *tensor.handles[0]) : Placements();
  });
}

}  // namespace cohort
