// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/local_parameters.h"

#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "torch/dtensor/autograd.h"
#include "torch/dtensor/impl.h"
#include "torch/optim/in_backward.h"
#include "torch/parallelize/module_tensors.h"

namespace cohort::ddp {

namespace {

void check_ranks(const std::string& name, const DeviceMesh& mesh, const ProcessGroup& group, int own) {
  const auto ranks = mesh.ranks();
  for (const auto rank : group.global_ranks()) {
    const bool is_shared = std::find(ranks.ranks().begin(), ranks.ranks().end(), rank) != ranks.ranks().end();
    if (!is_shared || rank == own) continue;
    throw Error(
        fmt::format("parameter \"{}\" lies on {}, which has rank {} in common with the group of "
                    "DistributedDataParallel; give it the other dimension of the mesh, such as mesh[\"dp\"]",
                    name, to_string(mesh), rank));
  }
}

}  // namespace

std::unique_ptr<LocalParameters> LocalParameters::make(::torch::nn::Module& module, const DdpOptions& options) {
  const auto all = module.parameters();
  if (std::none_of(all.begin(), all.end(), is_dtensor)) return nullptr;
  if (options.mixed_precision) {
    throw Error("mixed_precision is not supported for parameters that are distributed tensors");
  }
  const auto& group = options.process_group != nullptr ? options.process_group
                      : options.device_mesh            ? options.device_mesh->group()
                                                       : nullptr;
  std::vector<Parameter> parameters;
  for (auto& each : parameters_of(module, options.members)) {
    if (!is_dtensor(*each.handles.front())) continue;
    if (in_backward::is_stepped(*each.handles.front())) {
      throw Error(fmt::format(
          "parameter \"{}\" is a distributed tensor, and an OptimizerInBackward steps it: make optimizers for "
          "ddp.parameters(), and attach them after wrapping",
          each.name));
    }
    const DTensor distributed(*each.handles.front());
    if (group != nullptr) check_ranks(each.name, distributed.device_mesh(), *group, distributed.device_mesh().rank());
    auto local = distributed.to_local().detach();
    local.set_requires_grad(distributed.requires_grad());
    dtensor::KnownPart known(local, distributed);
    parameters.push_back({.handles = std::move(each.handles),
                          .distributed = distributed,
                          .local = std::move(local),
                          .known = std::move(known)});
  }
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is private
  std::unique_ptr<LocalParameters> made(new LocalParameters(std::move(parameters)));
  made->localize();
  return made;
}

LocalParameters::~LocalParameters() {
  for (const auto& each : parameters_) {
    for (auto* handle : each.handles) *handle = each.distributed;
  }
}

void LocalParameters::distribute() {
  for (const auto& each : parameters_) {
    const auto tensor =
        dtensor::from_local(each.local, dtensor::find_impl(each.distributed)->layout(), each.distributed.sizes());
    for (auto* handle : each.handles) *handle = tensor;
  }
}

void LocalParameters::localize() noexcept {
  for (const auto& each : parameters_) {
    for (auto* handle : each.handles) *handle = each.local;
  }
}

}  // namespace cohort::ddp
