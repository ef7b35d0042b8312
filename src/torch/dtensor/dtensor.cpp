// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <utility>

#include "torch/dtensor/autograd.h"
#include "torch/dtensor/checks.h"
#include "torch/dtensor/distribute.h"
#include "torch/dtensor/impl.h"
#include "torch/dtensor/implicit_replication.h"
#include "torch/dtensor/redistribute_local.h"

namespace cohort {

namespace {

using dtensor::find_impl;
using dtensor::Layout;
using dtensor::LayoutPtr;

const dtensor::DTensorImpl& impl_of(const at::Tensor& tensor) {
  return *find_impl(tensor);
}

/// Every rank's description, in an order that all ranks share: gathered along one mesh dimension after the other.
std::vector<std::string> descriptions_on_mesh(const DeviceMesh& mesh, const std::string& own) {
  constexpr auto end = '\n';
  std::string all = own + end;
  const IssueObserver unobserved({});  // no part of a captured step, whose replays have tensors of the same metadata
  for (const auto& group : mesh.all_groups()) {
    std::string joined;
    for (const auto& each : group->all_gather_bytes(all)) joined += each;
    all = std::move(joined);
  }
  std::vector<std::string> descriptions;
  for (std::size_t begin = 0; begin < all.size();) {
    const auto stop = all.find(end, begin);
    descriptions.push_back(all.substr(begin, stop - begin));
    begin = stop + 1;
  }
  return descriptions;
}

/// Compares what the ranks' parts are like. Parts of a sharded dimension may differ in its size.
void check_agreement(const at::Tensor& local, const Layout& layout) {
  auto sizes = local.sizes().vec();
  for (const auto& each : layout.placements) {
    if (each.is_shard()) sizes[static_cast<std::size_t>(each.dim())] = -1;
  }
  const auto own = fmt::format("{} of sizes [{}] as {}", c10::toString(local.scalar_type()), fmt::join(sizes, ", "),
                               to_string(layout.placements));
  const auto all = descriptions_on_mesh(layout.mesh, own);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& each) { return each != all.front(); });
  if (other == all.end()) return;
  throw ValueError(
      fmt::format("from_local: the ranks' parts differ (-1 stands for a sharded dimension): the first rank "
                  "of the mesh has {}, rank {} of it has {}",
                  all.front(), other - all.begin(), *other));
}

void broadcast_replicated(const at::Tensor& local, const Layout& layout) {
  const at::NoGradGuard no_grad;
  const auto whole = local.is_contiguous() ? local : local.contiguous();
  for (std::size_t dim = 0; dim < layout.placements.size(); ++dim) {
    if (!layout.placements[dim].is_replicate()) continue;
    layout.mesh.group(static_cast<std::int64_t>(dim))->broadcast(whole, {.stream = current_stream(whole)});
  }
  if (!whole.is_same(local)) local.copy_(whole);
}

std::vector<std::int64_t> inferred_global_sizes(const at::Tensor& local, const Layout& layout) {
  auto sizes = local.sizes().vec();
  for (std::size_t dim = 0; dim < layout.placements.size(); ++dim) {
    const auto& each = layout.placements[dim];
    if (each.is_shard())
      sizes[static_cast<std::size_t>(each.dim())] *= layout.mesh.size(static_cast<std::int64_t>(dim));
  }
  return sizes;
}

at::Device device_of(const DeviceMesh& mesh) {
  return at::Device(mesh.device_type());
}

at::Tensor on_mesh_device(const at::Tensor& tensor, const DeviceMesh& mesh) {
  const auto device = device_of(mesh);
  return tensor.device().type() == device.type() ? tensor : tensor.to(device);
}

}  // namespace

bool is_dtensor(const at::Tensor& tensor) {
  return tensor.defined() && find_impl(tensor) != nullptr;
}

DTensor::DTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  if (!is_dtensor(*this)) {
    throw TypeError("the tensor is not distributed; distribute_tensor() and DTensor::from_local() make one that is");
  }
}

DTensor DTensor::from_local(const at::Tensor& local) {
  return from_local(local, current_device_mesh());
}

DTensor DTensor::from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                            const FromLocalOptions& options) {
  if (is_dtensor(local)) throw Error("from_local: the tensor is distributed already");
  if (options.sizes.has_value() != options.strides.has_value()) {
    throw Error("from_local: give both the global sizes and the global strides, or neither");
  }
  const auto dims = options.sizes ? static_cast<std::int64_t>(options.sizes->size()) : local.dim();
  const auto layout = dtensor::checked_layout(mesh, std::move(placements), dims, "from_local");
  const bool is_member = mesh.coordinate() != nullptr;
  const auto part = is_member ? on_mesh_device(local, mesh) : at::empty({0}, local.options());
  if (options.run_check && is_member) {
    check_agreement(part, *layout);
    broadcast_replicated(part, *layout);
  }
  if (!options.sizes) {
    return DTensor(dtensor::from_local(part, layout, inferred_global_sizes(local, *layout)));
  }
  const auto expected = dtensor::local_sizes(*options.sizes, *layout);
  if (is_member && part.sizes() != at::IntArrayRef(expected)) {
    throw ValueError(
        fmt::format("from_local: a tensor of sizes [{}] that lies as {} has a part of sizes [{}] on this rank, "
                    "not [{}]",
                    fmt::join(*options.sizes, ", "), to_string(layout->placements), fmt::join(expected, ", "),
                    fmt::join(part.sizes().begin(), part.sizes().end(), ", ")));
  }
  auto result = dtensor::from_local(part, layout, *options.sizes);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(*options.sizes, *options.strides);
  return DTensor(std::move(result));
}

const DeviceMesh& DTensor::device_mesh() const {
  return impl_of(*this).layout()->mesh;
}

const Placements& DTensor::placements() const {
  return impl_of(*this).layout()->placements;
}

at::Tensor DTensor::to_local(const ToLocalOptions& options) const {
  const auto& layout = impl_of(*this).layout();
  if (!options.grad_placements) return dtensor::to_local(*this, layout);
  return dtensor::to_local(*this, dtensor::checked_layout(layout->mesh, *options.grad_placements, dim(), "to_local"));
}

at::Tensor DTensor::full_tensor() const {
  return redistribute({}).to_local();
}

DTensor DTensor::redistribute(Placements placements, const RedistributeOptions& options) const {
  const auto& from = impl_of(*this).layout();
  const auto target = dtensor::checked_layout(from->mesh, std::move(placements), dim(), "redistribute");
  for (std::size_t i = 0; i < target->placements.size(); ++i) {
    if (target->placements[i].is_partial() && !(target->placements[i] == from->placements[i])) {
      throw Error(fmt::format("redistribute: {} cannot become {}: only operators make Partial tensors",
                              to_string(from->placements), to_string(target->placements)));
    }
  }
  return DTensor(dtensor::redistribute(*this, target, options));
}

DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements,
                          const DistributeOptions& options) {
  const auto layout = dtensor::checked_layout(mesh, std::move(placements), tensor.dim(), "distribute_tensor");
  if (is_dtensor(tensor)) {
    if (!dtensor::equal(impl_of(tensor).layout(), layout)) {
      throw ValueError(
          fmt::format("distribute_tensor: the tensor is distributed already, as {}, and not on this mesh as "
                      "{}; use redistribute()",
                      to_string(impl_of(tensor).layout()->placements), to_string(layout->placements)));
    }
    return DTensor(tensor);
  }
  if (!tensor.is_leaf()) {
    throw Error(
        "distribute_tensor: the tensor has an autograd history that would be lost; use DTensor::from_local(), "
        "which is differentiable, or detach() it");
  }
  if (std::any_of(layout->placements.begin(), layout->placements.end(),
                  [](const Placement& each) { return each.is_partial(); })) {
    throw Error("distribute_tensor: Partial is not a placement to distribute to");
  }
  const at::NoGradGuard no_grad;
  auto part = dtensor::distribute_local(on_mesh_device(tensor.detach(), mesh), *layout, options.src_data_rank);
  auto result = dtensor::wrap(std::move(part), layout, tensor.sizes());
  if (tensor.requires_grad()) {
    result.set_requires_grad(true);
    dtensor::redistribute_gradients_of(result);
  }
  return DTensor(std::move(result));
}

at::Tensor constrain(const at::Tensor& tensor, Placements placements) {
  return is_dtensor(tensor) ? DTensor(tensor).redistribute(std::move(placements)) : tensor;
}

ImplicitReplication::ImplicitReplication()
    : scope_(dtensor::PlainTensorsAreReplicated::kind(), std::make_shared<dtensor::PlainTensorsAreReplicated>()) {}

ImplicitReplication::~ImplicitReplication() = default;

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  return out << to_string(tensor.placements()) << " on " << to_string(tensor.device_mesh()) << ", this rank's part:\n"
             << impl_of(tensor).local();
}

namespace dtensor {

namespace {

template <class Make>
DTensor make(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options,
             Make&& make_local) {
  const auto layout = checked_layout(mesh, std::move(placements), static_cast<std::int64_t>(sizes.size()), "factory");
  if (std::any_of(layout->placements.begin(), layout->placements.end(),
                  [](const Placement& each) { return each.is_partial(); })) {
    throw Error("a new tensor cannot be Partial: only operators make Partial tensors");
  }
  const auto on_device = options.device_opt() ? options : options.device(device_of(mesh));
  auto result = wrap(make_local(local_sizes(sizes, *layout), on_device.requires_grad(false)), layout, sizes);
  if (options.requires_grad()) {
    result.set_requires_grad(true);
    redistribute_gradients_of(result);
  }
  return DTensor(std::move(result));
}

}  // namespace

DTensor empty(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options) {
  return make(sizes, mesh, std::move(placements), options,
              [](at::IntArrayRef part, const at::TensorOptions& how) { return at::empty(part, how); });
}

DTensor full(at::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh, Placements placements,
             const at::TensorOptions& options) {
  return make(sizes, mesh, std::move(placements), options,
              [&](at::IntArrayRef part, const at::TensorOptions& how) { return at::full(part, value, how); });
}

DTensor zeros(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options) {
  return make(sizes, mesh, std::move(placements), options,
              [](at::IntArrayRef part, const at::TensorOptions& how) { return at::zeros(part, how); });
}

DTensor ones(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options) {
  return make(sizes, mesh, std::move(placements), options,
              [](at::IntArrayRef part, const at::TensorOptions& how) { return at::ones(part, how); });
}

DTensor rand(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options) {
  auto result = empty(sizes, mesh, std::move(placements), options);
  const at::NoGradGuard no_grad;
  result.uniform_(0, 1);
  return result;
}

DTensor randn(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options) {
  auto result = empty(sizes, mesh, std::move(placements), options);
  const at::NoGradGuard no_grad;
  result.normal_(0, 1);
  return result;
}

}  // namespace dtensor

}  // namespace cohort
