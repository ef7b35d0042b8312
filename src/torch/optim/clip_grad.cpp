// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "torch/dispatch/step_observer.h"
#include "torch/host_numbers.h"
#include "torch/optim/local_gradients.h"

namespace cohort {

namespace {

/// Gradients that are spread over the same ranks.
struct Spread {
  std::vector<ProcessGroupPtr> groups{};  ///< the ranks of each hold other elements
  bool is_of_rank = false;                ///< each rank of ClipGradOptions::process_group has others
  std::vector<at::Tensor> norms{};
};

bool contains(const std::vector<ProcessGroupPtr>& groups, const ProcessGroupPtr& group) {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

/// Whether each rank of the group has parameters of its own on a mesh of its own. Otherwise all have the same one on
/// this mesh.
bool is_of_rank(const DeviceMesh& mesh, const ProcessGroup& group) {
  const auto on_mesh = mesh.ranks();
  const auto& ranks = group.global_ranks();
  const auto shared = std::count_if(ranks.begin(), ranks.end(), [&](int rank) {
    return std::find(on_mesh.ranks().begin(), on_mesh.ranks().end(), rank) != on_mesh.ranks().end();
  });
  if (shared == std::ssize(ranks)) return false;
  if (shared == 1) return true;
  throw ValueError(fmt::format(
      "clip_grad_norm_: a parameter lies on {}, which has {} of the {} ranks of process_group: neither do they "
      "all have this parameter, nor each another one. Distributed tensors need no process_group",
      to_string(mesh), shared, ranks.size()));
}

Spread& spread_of(const dtensor::LayoutPtr& layout, const ProcessGroup* group, std::vector<Spread>& spreads) {
  Spread wanted{.is_of_rank = group != nullptr && (layout == nullptr || is_of_rank(layout->mesh, *group))};
  for (std::size_t i = 0; layout != nullptr && i < layout->placements.size(); ++i) {
    if (layout->placements[i].is_shard()) add_group(wanted.groups, layout->mesh.all_groups()[i]);
  }
  const auto found = std::find_if(spreads.begin(), spreads.end(), [&](const Spread& each) {
    return each.groups == wanted.groups && each.is_of_rank == wanted.is_of_rank;
  });
  return found != spreads.end() ? *found : spreads.emplace_back(std::move(wanted));
}

/// The norm of what has these norms.
at::Tensor norm_of(const std::vector<at::Tensor>& norms, double p, const at::TensorOptions& options) {
  return norms.empty() ? at::zeros({}, options) : at::linalg_vector_norm(at::stack(norms), p);
}

/// Makes each of the norms that of all ranks together, by one reduction. They are doubles, since a power of a norm may
/// exceed float's range, and ranks may have parameters of different dtypes.
void combine(ProcessGroup& group, const std::vector<at::Tensor*>& norms, double p) {
  const bool largest = std::isinf(p);
  std::vector<at::Tensor> powers;
  for (const auto* const each : norms) powers.push_back(largest ? *each : each->pow(p));
  auto shared = at::stack(powers);
  group.all_reduce(buffer_of(shared),
                   {.op = largest ? ReduceOp::max() : ReduceOp::sum(), .stream = current_stream(shared)});
  if (!largest) shared = shared.pow(1 / p);
  for (std::size_t i = 0; i < norms.size(); ++i) *norms[i] = shared[static_cast<std::int64_t>(i)];
}

/// The norm of all gradients: one reduction for each dimension of a mesh in which some are sharded, and one in the
/// group. The ranks of a mesh have the same parameters there, so they come to the same reductions in the same order.
at::Tensor total_norm(std::vector<Spread> spreads, double p, ProcessGroup* group, const at::TensorOptions& options) {
  std::vector<ProcessGroupPtr> groups;
  for (auto& each : spreads) {
    if (each.groups.empty()) continue;
    each.norms = {norm_of(each.norms, p, options)};
    for (const auto& among : each.groups) add_group(groups, among);
  }
  for (const auto& among : groups) {
    std::vector<at::Tensor*> norms;
    for (auto& each : spreads) {
      if (contains(each.groups, among)) norms.push_back(&each.norms.front());
    }
    combine(*among, norms, p);
  }
  std::vector<at::Tensor> common;
  std::vector<at::Tensor> of_rank;
  for (const auto& each : spreads) {
    auto& norms = each.is_of_rank ? of_rank : common;
    norms.insert(norms.end(), each.norms.begin(), each.norms.end());
  }
  if (group != nullptr) {
    common.push_back(norm_of(of_rank, p, options));
    combine(*group, {&common.back()}, p);
  }
  return norm_of(common, p, options);
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradOptions& options) {
  const double p = options.norm_type;
  if (!(p > 0)) throw ValueError(fmt::format("clip_grad_norm_: norm_type {} is none", p));
  if (!(max_norm >= 0)) throw ValueError(fmt::format("clip_grad_norm_: max_norm {} is negative", max_norm));
  const at::NoGradGuard no_grad;
  auto* const group = options.process_group.get();
  auto gradients = local_gradients(parameters, "clip_grad_norm_");
  const auto device = !gradients.empty() ? gradients.front().device
                      : group != nullptr ? device_without_tensors(*group)
                                         : at::Device(at::kCPU);
  // The norm's, which is that of all gradients, also where this rank's part is empty.
  std::optional<at::ScalarType> dtype;
  std::vector<Spread> spreads;
  for (const auto& each : gradients) {
    auto& spread = spread_of(each.layout, group, spreads);
    if (!each.gradient.defined()) continue;
    const auto its = c10::toRealValueType(each.gradient.scalar_type());
    dtype = c10::promoteTypes(dtype.value_or(its), its);
    if (each.part.numel() > 0) spread.norms.push_back(at::linalg_vector_norm(each.part, p).to(device));
  }
  const bool is_reduced =
      group != nullptr || std::any_of(spreads.begin(), spreads.end(), [](const auto& x) { return !x.groups.empty(); });
  const at::TensorOptions of_norm = at::TensorOptions(dtype.value_or(at::kFloat)).device(device);
  if (is_reduced) {
    for (auto& spread : spreads) {
      for (auto& norm : spread.norms) norm = norm.to(at::kDouble);
    }
  }
  const auto total =
      total_norm(std::move(spreads), p, group, is_reduced ? of_norm.dtype(at::kDouble) : of_norm).to(of_norm);
  if (options.error_if_nonfinite) {
    refuse_to_record(CaptureRefusal::host_read, "clip_grad_norm_ with error_if_nonfinite",
                     "the host reads the norm to throw the error, and a replay would not",
                     {"Return the norm from the step, and look at it afterwards."});
    const auto norm = total.item<double>();
    if (!std::isfinite(norm)) {
      throw Error(fmt::format("clip_grad_norm_: the norm of the gradients is {}: nothing was scaled", norm));
    }
  }
  // Multiplies even by 1: finding out whether that is needed would have to wait for the device.
  const auto factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (auto& each : gradients) {
    if (each.gradient.defined()) each.gradient.mul_(factor.to(each.device));
  }
  return total;
}

}  // namespace cohort
