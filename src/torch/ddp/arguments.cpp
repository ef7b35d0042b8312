// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/arguments.h"

#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cohort::ddp {

namespace {

void check_delayed(const DdpOptions& options) {
  const auto& [first_name, first] = options.delay_all_reduce_named_params.front();
  for (const auto& [name, tensor] : options.delay_all_reduce_named_params) {
    if (!tensor.defined() || tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
      throw ValueError(
          fmt::format("delay_all_reduce_named_params: {} and {} differ in dtype or device", first_name, name));
    }
  }
  if (!options.delay_until.requires_grad() || !options.delay_until.is_leaf()) {
    throw ValueError("delay_until is not a parameter that gets a gradient");
  }
}

void check_devices(const Parameters& parameters, const DdpOptions& options) {
  if (options.device_ids.size() > 1) {
    throw ValueError(fmt::format("device_ids names {} devices; it must be empty or name the one that the module is on",
                                 options.device_ids.size()));
  }
  std::set<at::DeviceType> types;
  std::set<std::pair<at::DeviceType, at::DeviceIndex>> devices;
  for (const auto& each : parameters.tensors) {
    types.insert(each.device().type());
    devices.emplace(each.device().type(), each.device().index());
  }
  if (types.size() > 1) throw ValueError("the module's parameters are on devices of several types; one is allowed");
  const bool is_on_host = types.contains(at::kCPU);
  if ((!options.device_ids.empty() || options.output_device) && (is_on_host || devices.size() > 1)) {
    throw ValueError(fmt::format("device_ids and output_device are for modules on one accelerator; this one is on {}",
                                 is_on_host ? "the host" : "several"));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters.tensors[i].is_meta()) continue;
    throw Error(
        fmt::format("parameter {} is on device meta and has no values yet: give it some (to_empty, or a module "
                    "made on the device it is for) before wrapping it",
                    parameters.names[i]));
  }
}

void check_bucket_caps(const DdpOptions& options) {
  const auto is_bad = [](double cap) { return !(cap > 0); };
  if ((options.bucket_cap_mb && is_bad(*options.bucket_cap_mb)) ||
      std::any_of(options.bucket_caps_mb.begin(), options.bucket_caps_mb.end(), is_bad)) {
    throw ValueError("a bucket cap must be more than 0 MiB");
  }
  if (options.bucket_cap_mb && !options.bucket_caps_mb.empty()) {
    throw ValueError("bucket_cap_mb and bucket_caps_mb exclude each other");
  }
}

void take_group_of_mesh(DdpOptions& options) {
  if (options.process_group != nullptr) {
    throw Error("process_group and device_mesh exclude each other: the group of a mesh is that of its dimension");
  }
  if (options.device_mesh->ndim() != 1) {
    throw Error(
        fmt::format("DistributedDataParallel on {}: a device_mesh of one dimension is needed, such as "
                    "mesh[\"dp\"]",
                    to_string(*options.device_mesh)));
  }
  options.process_group = options.device_mesh->group();
}

}  // namespace

Selection check_arguments(const ::torch::nn::Module* module, DdpOptions& options, std::optional<bool> sees_outputs) {
  if (module == nullptr) throw ValueError("DistributedDataParallel of no module");
  const bool has_delayed = !options.delay_all_reduce_named_params.empty();
  if (has_delayed != options.delay_until.defined()) {
    throw ValueError("delay_all_reduce_named_params and delay_until are given together or not at all");
  }
  if (has_delayed) check_delayed(options);
  if (options.device_mesh) take_group_of_mesh(options);
  if (options.process_group == nullptr) options.process_group = current_process_group();
  if (options.process_group == nullptr) {
    throw ValueError(
        "DistributedDataParallel has no process group: pass one as .process_group, pass a .device_mesh, or set one for "
        "this thread with "
        "cohort::ProcessGroupGuard");
  }
  auto selection = select(*module, ignored_names(options));
  if (selection.parameters.size() == 0) {
    if (!has_delayed) {
      throw Error("DistributedDataParallel is not needed: no parameter of the module requires a gradient");
    }
    log(LogLevel::info, "all parameters are reduced together after delay_until: there are no buckets");
  }
  check_devices(selection.parameters, options);
  if (!options.device_ids.empty() && !options.output_device) options.output_device = options.device_ids.front();
  const bool casts_parameters = options.mixed_precision && options.mixed_precision->param_dtype;
  if ((options.find_unused_parameters || options.static_graph || casts_parameters) && sees_outputs == false) {
    refuse_hidden_outputs();
  }
  check_bucket_caps(options);
  return selection;
}

void refuse_hidden_outputs() {
  throw ValueError(
      "find_unused_parameters, static_graph and mixed_precision need the tensors in forward's result, which are not "
      "found in its type: return tensors, tuples, vectors, maps or optionals of them, or give the type a visit_tensors "
      "(outputs.h)");
}

std::set<std::string> ignored_names(const DdpOptions& options) {
  std::set<std::string> names(options.ignored.begin(), options.ignored.end());
  for (const auto& [name, tensor] : options.delay_all_reduce_named_params) names.insert(name);
  return names;
}

}  // namespace cohort::ddp
