// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers of distributed tensors. Ranks that hold the same elements must draw the same numbers, and ranks that
// hold different ones different numbers, without communication at every draw: each mesh has a seed, which the first
// draw takes from the first rank's default generator and broadcasts, and a counter of draws, which is equal on all
// ranks because they make the same calls. A draw's own seed is a hash of seed, counter and the index of the part.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// Where a mesh's sequence of random numbers stands, equal on all its ranks.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t draws = 0;
};
/// Nothing before the first draw, and on a rank outside the mesh.
std::optional<RandomState> random_state_of(const DeviceMesh& mesh);
/// Nothing: the next draw takes a new seed. Does nothing on a rank outside the mesh.
void set_random_state(const DeviceMesh& mesh, const std::optional<RandomState>& state);

/// A generator for the next draw of a tensor with this layout. `like` gives the device. A Partial tensor has no numbers
/// of its own to draw; the caller refuses it.
at::Generator next_generator(const Layout& layout, const at::Tensor& like);

/// The seed for a part: equal for ranks that hold the same part.
std::uint64_t seed_of_part(std::uint64_t seed, std::uint64_t draw, const Layout& layout);

}  // namespace cohort::dtensor
