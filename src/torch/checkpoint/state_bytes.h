// SPDX-License-Identifier: BSD-3-Clause
//
// A StateDict as the bytes of a safetensors file, and back. Complex tensors become real ones with a last dimension of
// 2, since few readers know complex types; the metadata lists them. Layouts other than strided are refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/state_dict.h>

#include <cstddef>
#include <functional>
#include <string>

#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/saved_parts.h"
#include "torch/state/box.h"

namespace cohort {

/// Gives header and tensors to `sink`, one tensor at a time, so that no second copy of the state is made. The header
/// also names a tensor of `seal_bytes` bytes at the end, which is the caller's to write; none if 0.
void write_state(const StateDict& state, const std::string& seal, std::size_t seal_bytes,
                 const std::function<void(const void*, std::size_t)>& sink);
/// The tensors use the memory of the content, which they keep alive.
StateDict read_state(const CheckpointContent& content);

/// The type of the values of a tensor in files. A CheckpointError if this version of libtorch does not have it.
at::ScalarType scalar_type_of(const SavedParts& saved);
/// A box of one of its parts, counted from the part's first element, in memory of its own. From the file it reads what
/// lies between the first and the last of the elements.
at::Tensor read_box(const CheckpointPieces& pieces, const TensorInfo& part, const SavedParts& saved, const Box& box);

/// For a state that is sent between ranks: without a seal.
std::string state_to_bytes(const StateDict& state);
StateDict state_from_bytes(std::string bytes, const std::string& sender);

}  // namespace cohort
