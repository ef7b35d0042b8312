// SPDX-License-Identifier: BSD-3-Clause
//
// How the objects that users add become named tensors and values, and back.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/dtensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>

#include "torch/dtensor/known_parts.h"
#include "torch/dtensor/random_state.h"
#include "torch/optim/optimizer_state.h"
#include "torch/state/checkpoint_names.h"
#include "torch/state/distributed_state.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

using NamedTensors = std::map<std::string, at::Tensor>;
using TensorPairs = std::vector<std::pair<at::Tensor, at::Tensor>>;

constexpr std::string_view wrapped_prefix = "module.";

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors all;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) all.emplace(item.key(), item.value());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return all;
}

bool all_wrapped(const NamedTensors& tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(),
                                         [](const auto& item) { return item.first.starts_with(wrapped_prefix); });
}

/// With the prefix that a wrapped module's names have, or without it.
NamedTensors renamed(const NamedTensors& tensors, bool wraps) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    result.emplace(wraps ? std::string(wrapped_prefix) + name : name.substr(wrapped_prefix.size()), tensor);
  }
  return result;
}

/// Why values of one dtype are not copied into a tensor of another; empty if they are.
std::string why_not_converted(at::ScalarType there, at::ScalarType here, bool converts) {
  if (there == here) return {};
  const auto differ = fmt::format("is {} there and {} here", c10::toString(there), c10::toString(here));
  if (c10::isComplexType(there) && !c10::isComplexType(here)) return differ + ", which has no imaginary parts";
  return converts ? "" : differ + ": load with {.convert_dtypes = true} to convert it";
}

/// Pairs of the module's tensor and the saved one that goes into it.
TensorPairs match_tensors(const NamedTensors& own, NamedTensors saved, bool ignore_prefix, bool converts) {
  if (ignore_prefix && all_wrapped(saved) != all_wrapped(own)) saved = renamed(saved, all_wrapped(own));
  std::vector<std::string> problems;
  TensorPairs pairs;
  for (const auto& [name, tensor] : own) {
    const auto it = saved.find(name);
    if (it == saved.end()) {
      problems.push_back(fmt::format("{} is missing", name));
    } else if (const auto whole = dtensor::whole_of(tensor); it->second.sizes() != whole.sizes()) {
      problems.push_back(fmt::format("{} has shape [{}] there and [{}] here", name, fmt::join(it->second.sizes(), ", "),
                                     fmt::join(whole.sizes(), ", ")));
    } else if (const auto why = why_not_converted(it->second.scalar_type(), whole.scalar_type(), converts);
               !why.empty()) {
      problems.push_back(fmt::format("{} {}", name, why));
    } else {
      try {
        pairs.emplace_back(tensor, saved_for(tensor, it->second));
      } catch (const CheckpointError& e) {
        problems.push_back(fmt::format("{}: {}", name, e.message()));
      }
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (!own.contains(name)) problems.push_back(fmt::format("{} is not part of the module", printable(name)));
  }
  if (!problems.empty()) throw CheckpointError(fmt::format("does not fit: {}", fmt::join(problems, "; ")));
  return pairs;
}

/// The tensor that a saved one of this name goes into, whichever of both is wrapped.
at::Tensor target_in(const NamedTensors& own, const std::string& name) {
  const auto bare = name.starts_with(wrapped_prefix) ? name.substr(wrapped_prefix.size()) : name;
  for (const auto& each : {name, bare, std::string(wrapped_prefix) + bare}) {
    if (const auto it = own.find(each); it != own.end()) return dtensor::whole_of(it->second);
  }
  return {};
}

/// An operation in place, so that autograd notices that a tensor which it has saved has changed.
void copy_pairs(const TensorPairs& pairs) {
  const at::NoGradGuard no_grad;
  for (const auto& [own, saved] : pairs) own.copy_(saved);
}

StateDict generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  StateDict state;
  state.set("", generator.get_state());
  return state;
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

std::string generator_name(std::size_t number) {
  return fmt::format("generator{}", number);
}

std::string mesh_name(std::size_t number) {
  return fmt::format("mesh{}", number);
}

/// Where the sequence of random numbers of distributed tensors stands.
StateDict mesh_state(const DeviceMesh& mesh) {
  StateDict state;
  state.set("shape", mesh.shape());
  if (const auto random = dtensor::random_state_of(mesh)) {
    state.set("seed", random->seed);
    state.set("draws", random->draws);
  }
  return state;
}

/// Empty if it was another mesh: then its numbers would be others anyway.
std::function<void()> stage_mesh_state(const DeviceMesh& mesh, const StateDict& state) {
  if (!state.has("shape") || state.get<std::vector<std::int64_t>>("shape") != mesh.shape()) return nullptr;
  std::optional<dtensor::RandomState> random;
  if (state.has("seed")) {
    random = {.seed = state.get<std::uint64_t>("seed"), .draws = state.get<std::uint64_t>("draws")};
  }
  return [mesh, random] { dtensor::set_random_state(mesh, random); };
}

template <class T>
void add_new(std::vector<T>& list, const T& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

/// libtorch lets derived classes alone see the count.
struct StepCount : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
};

}  // namespace

void Checkpoint::add_entry(Entry entry) {
  const auto& name = entry.name;
  if (name.empty()) throw ValueError("checkpoint: an empty name");
  if (name == reserved_name || name.starts_with(std::string(reserved_name) + ".")) {
    throw ValueError(fmt::format("checkpoint: '{}': names that begin with '{}' are Cohort's own", name, reserved_name));
  }
  for (const auto& each : entries_) {
    if (each.name == name) throw ValueError(fmt::format("checkpoint: there is a '{}' already", name));
    if (each.name.starts_with(name + ".") || name.starts_with(each.name + ".")) {
      throw ValueError(fmt::format("checkpoint: of '{}' and '{}' one lies inside the other", name, each.name));
    }
  }
  entries_.push_back(std::move(entry));
}

Checkpoint::Entry Checkpoint::module_entry(std::shared_ptr<torch::nn::Module> owned, torch::nn::Module& module) {
  Entry entry;
  entry.is_module = true;
  entry.save = [owned = std::move(owned), &module] {
    StateDict state;
    for (const auto& [name, tensor] : module_tensors(module)) state.set(name, dtensor::whole_of(tensor));
    return state;
  };
  entry.stage = [&module](const StateDict& state, const CheckpointLoadOptions& options) -> std::function<void()> {
    return [pairs = match_tensors(module_tensors(module), state.tensors(), options.ignore_module_prefix,
                                  options.convert_dtypes)] { copy_pairs(pairs); };
  };
  entry.targets = [&module] {
    return [own = module_tensors(module)](const std::string& key) { return target_in(own, key); };
  };
  // The module may still be moved to another device, so this is asked when it is needed.
  entry.tensors = [&module] {
    std::vector<at::Tensor> all;
    for (const auto& [name, tensor] : module_tensors(module)) all.push_back(dtensor::whole_of(tensor));
    return all;
  };
  return entry;
}

Checkpoint::Entry Checkpoint::optimizer_entry(torch::optim::Optimizer& optimizer) {
  require_known_optimizer(optimizer);
  Entry entry;
  entry.save = [&optimizer] { return optimizer_state_dict(optimizer, optimizer); };
  entry.stage = [&optimizer](const StateDict& state, const CheckpointLoadOptions&) -> std::function<void()> {
    const auto loaded = std::make_shared<LoadedOptimizerState>(optimizer, state);
    return [&optimizer, loaded] { loaded->install(optimizer, optimizer); };
  };
  entry.targets = [&optimizer] { return parameters_by_key(optimizer); };
  return entry;
}

/// The learning rates are the optimizer's.
Checkpoint::Entry Checkpoint::scheduler_entry(torch::optim::LRScheduler& scheduler) {
  Entry entry;
  entry.save = [&scheduler] {
    StateDict state;
    state.set("step_count", StepCount::of(scheduler));
    return state;
  };
  entry.stage = [&scheduler](const StateDict& state, const CheckpointLoadOptions&) -> std::function<void()> {
    return [&scheduler, count = state.get<unsigned>("step_count")] { StepCount::of(scheduler) = count; };
  };
  return entry;
}

Checkpoint::Entry Checkpoint::tensor_entry(at::Tensor tensor) {
  if (!tensor.defined()) throw ValueError("checkpoint: an undefined tensor");
  Entry entry;
  entry.save = [tensor] {
    StateDict state;
    state.set("", dtensor::whole_of(tensor));
    return state;
  };
  entry.stage = [tensor](const StateDict& state, const CheckpointLoadOptions& options) -> std::function<void()> {
    return
        [pairs = match_tensors({{"", tensor}}, state.tensors(), false, options.convert_dtypes)] { copy_pairs(pairs); };
  };
  entry.targets = [tensor] { return [tensor](const std::string& /*key*/) { return dtensor::whole_of(tensor); }; };
  return entry;
}

Checkpoint::Entry Checkpoint::generator_entry(at::Generator generator) {
  Entry entry;
  entry.save = [generator] { return generator_state(generator); };
  entry.stage = [generator](const StateDict& state, const CheckpointLoadOptions&) -> std::function<void()> {
    return [generator, saved = state.tensor("")] { set_generator_state(generator, saved); };
  };
  return entry;
}

/// Stored by number and not by name: rank 1's cuda:1 may be another device the next time, and the groups of a mesh are
/// others.
Checkpoint::Entry Checkpoint::random_entry() const {
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  std::vector<DeviceMesh> meshes;
  for (const auto& each : entries_) {
    if (!each.tensors) continue;
    for (const auto& tensor : each.tensors()) {
      add_new(devices, tensor.device());
      if (is_dtensor(tensor)) add_new(meshes, DTensor(tensor).device_mesh());
    }
  }
  Entry entry{.name = std::string(random_name), .per_rank = true};
  entry.save = [devices, meshes] {
    StateDict state;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      state.add(generator_name(i), generator_state(at::globalContext().defaultGenerator(devices[i])));
    }
    for (std::size_t i = 0; i < meshes.size(); ++i) state.add(mesh_name(i), mesh_state(meshes[i]));
    return state;
  };
  entry.stage = [devices, meshes](const StateDict& state, const CheckpointLoadOptions&) -> std::function<void()> {
    std::vector<std::function<void()>> actions;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (!state.has(generator_name(i))) continue;
      actions.emplace_back([generator = at::globalContext().defaultGenerator(devices[i]),
                            saved = state.tensor(generator_name(i))] { set_generator_state(generator, saved); });
    }
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      if (auto action = stage_mesh_state(meshes[i], state.part(mesh_name(i)))) actions.push_back(std::move(action));
    }
    return [actions] {
      for (const auto& action : actions) action();
    };
  };
  return entry;
}

std::vector<Checkpoint::Entry> Checkpoint::all_entries() const {
  auto all = entries_;
  if (options_.random_state) all.push_back(random_entry());
  return all;
}

}  // namespace cohort
