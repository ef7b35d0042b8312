// SPDX-License-Identifier: BSD-3-Clause
//
// Which rank writes what of the distributed tensors. All ranks tell each other which boxes of which tensors they hold,
// and each box is written once, whoever holds it too: replicas on a mesh dimension, or on other slices of a mesh, which
// the tensor itself does not know. All ranks compute the same plan from the same lists.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "torch/state/box.h"

namespace cohort {

/// What one rank holds of a tensor.
struct HeldTensor {
  std::string dtype{};
  std::int64_t element_bytes = 0;
  std::vector<std::int64_t> shape{};  ///< of the whole
  std::vector<Box> boxes{};
  bool everywhere = true;  ///< all ranks have it, if only an empty part
};
using HeldTensors = std::map<std::string, HeldTensor>;

std::string held_to_text(const HeldTensors& held);
HeldTensors held_from_text(const std::string& text);

/// The boxes that `rank` writes, so that all write about as many bytes. `all` has what each rank holds. A
/// CheckpointError that names tensor and rank if one that is to be everywhere is not, and if dtype or shape differ.
std::map<std::string, std::vector<Box>> boxes_to_write(const std::vector<HeldTensors>& all, int rank);

/// A CheckpointError that names the tensor, unless what the ranks hold are parts that make each tensor whole.
void check_held(const std::vector<HeldTensors>& all);

}  // namespace cohort
