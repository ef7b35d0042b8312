// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/random_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <cohort/torch/dtensor.h>

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/immortal.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

/// By the groups' ids and this rank's place: equal meshes that are made anew continue the sequence, ranks that are
/// threads of one process have their own, and no mesh is kept alive.
struct RandomStates {
  std::mutex mutex;
  std::unordered_map<std::string, RandomState> states;
};

RandomStates& random_states() {
  static Immortal<RandomStates> states;
  return *states;
}

std::string key_of(const DeviceMesh& mesh) {
  std::string key;
  for (std::int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    key += mesh.group(dim)->id() + "#" + std::to_string((*mesh.coordinate())[static_cast<std::size_t>(dim)]) + ";";
  }
  return key;
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014): a bijection that mixes well.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

/// This thread's generator for a device, which is seeded anew for each draw. It is kept because making one is slow on
/// the host (a state of 5 KB), and because libtorch 1.13 never frees a clone, which is how one is made without CUDA's
/// headers.
at::Generator& own_generator(at::Device device) {
  thread_local std::unordered_map<at::Device, at::Generator> generators;
  auto& generator = generators[device];
  if (generator.defined()) return generator;
  if (device.is_cpu()) {
    generator = at::detail::createCPUGenerator();
  } else {
    auto original = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(original.mutex());
    generator = original.clone();
  }
  return generator;
}

std::uint64_t agreed_seed(const DeviceMesh& mesh, const at::Tensor& like) {
  std::int64_t seed = 0;
  {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    seed = static_cast<std::int64_t>(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
  }
  auto agreed = at::full({1}, seed, like.options().dtype(at::kLong));
  for (std::int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    agreed = functional::on_group::broadcast(agreed, 0, mesh.group(dim));
  }
  return static_cast<std::uint64_t>(agreed.item<std::int64_t>());
}

}  // namespace

std::uint64_t seed_of_part(std::uint64_t seed, std::uint64_t draw, const Layout& layout) {
  std::uint64_t part = 0;
  for (std::size_t dim = 0; dim < layout.placements.size(); ++dim) {
    if (!layout.placements[dim].is_shard()) continue;
    part = part * static_cast<std::uint64_t>(layout.mesh.size(static_cast<std::int64_t>(dim))) +
           static_cast<std::uint64_t>((*layout.mesh.coordinate())[dim]);
  }
  return mixed(mixed(mixed(seed) + draw) + part);
}

std::optional<RandomState> random_state_of(const DeviceMesh& mesh) {
  if (mesh.coordinate() == nullptr) return std::nullopt;
  auto& all = random_states();
  const std::lock_guard lock(all.mutex);
  const auto found = all.states.find(key_of(mesh));
  return found == all.states.end() ? std::nullopt : std::optional(found->second);
}

void set_random_state(const DeviceMesh& mesh, const std::optional<RandomState>& state) {
  if (mesh.coordinate() == nullptr) return;
  auto& all = random_states();
  const std::lock_guard lock(all.mutex);
  if (state.has_value()) {
    all.states[key_of(mesh)] = *state;
  } else {
    all.states.erase(key_of(mesh));
  }
}

at::Generator next_generator(const Layout& layout, const at::Tensor& like) {
  auto state = random_state_of(layout.mesh);
  if (!state) state = RandomState{.seed = agreed_seed(layout.mesh, like), .draws = 0};
  set_random_state(layout.mesh, RandomState{.seed = state->seed, .draws = state->draws + 1});
  auto& generator = own_generator(like.device());
  generator.set_current_seed(seed_of_part(state->seed, state->draws, layout));
  return generator;
}

void manual_seed(std::uint64_t seed, const DeviceMesh& mesh) {
  set_random_state(mesh, RandomState{.seed = seed, .draws = 0});
}

}  // namespace cohort::dtensor
