// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/distributed_state.h"

#include <ATen/ATen.h>
#include <cohort/torch/checkpoint_error.h>
#include <cohort/torch/dtensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "torch/dtensor/distribute.h"
#include "torch/dtensor/impl.h"
#include "torch/dtensor/known_parts.h"
#include "torch/dtensor/local_boxes.h"
#include "torch/state/checkpoint_names.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

bool is_partial_anywhere(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const Placement& each) { return each.is_partial(); });
}

/// A box of this rank's part.
at::Tensor view_of(const at::Tensor& local, const dtensor::LocalBox& box) {
  auto view = local;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
    view = view.narrow(static_cast<std::int64_t>(dim), box.local_offsets[dim], box.sizes[dim]);
  }
  return view;
}

/// The boxes of a tensor's part; a tensor without elements has one, the whole, so that somebody writes its dtype.
std::vector<dtensor::LocalBox> boxes_to_save(const dtensor::DTensorImpl& impl) {
  if (impl.numel() > 0) return dtensor::local_boxes(impl.sizes(), *impl.layout());
  const std::vector<std::int64_t> origin(impl.sizes().size());
  return {{.offsets = origin, .local_offsets = origin, .sizes = impl.sizes().vec()}};
}

void refuse_partial(const std::string& name, const Placements& placements) {
  if (!is_partial_anywhere(placements)) return;
  throw CheckpointError(fmt::format(
      "the distributed tensor {} is {}: no rank has its values, only summands or the like; redistribute() it "
      "to Replicate or Shard before",
      printable(name), to_string(placements)));
}

}  // namespace

SplitState split_state(const StateDict& state) {
  SplitState split;
  for (const auto& [name, tensor] : state.tensors()) {
    (is_dtensor(tensor) ? split.distributed : split.plain).set(name, tensor);
  }
  for (const auto& [key, text] : state.values()) split.plain.set_text(key, text);
  return split;
}

HeldTensors held_tensors(const StateDict& distributed, bool everywhere) {
  HeldTensors held;
  for (const auto& [name, tensor] : distributed.tensors()) {
    const auto& impl = *dtensor::find_impl(tensor);
    refuse_partial(name, impl.layout()->placements);
    HeldTensor mine{.dtype = c10::toString(tensor.scalar_type()),
                    .element_bytes = static_cast<std::int64_t>(tensor.dtype().itemsize()),
                    .shape = tensor.sizes().vec(),
                    .boxes = {},
                    .everywhere = everywhere};
    for (auto& box : boxes_to_save(impl)) {
      mine.boxes.push_back({.offsets = std::move(box.offsets), .sizes = std::move(box.sizes)});
    }
    held.emplace(name, std::move(mine));
  }
  return held;
}

void add_parts(StateDict& state, const StateDict& distributed, const std::map<std::string, std::vector<Box>>& boxes) {
  for (const auto& [name, mine] : boxes) {
    const auto& impl = *dtensor::find_impl(distributed.tensors().at(name));
    for (const auto& held : boxes_to_save(impl)) {
      const Box box{.offsets = held.offsets, .sizes = held.sizes};
      if (std::find(mine.begin(), mine.end(), box) == mine.end()) continue;
      const auto key = part_name(name, box);
      if (state.has(key)) throw CheckpointError(fmt::format("there is a tensor {} besides", printable(key)));
      state.set(key, impl.numel() > 0 ? view_of(impl.local(), held) : at::empty(impl.sizes(), impl.local().options()));
    }
    state.set(std::string(shape_key) + name, impl.sizes().vec());
  }
}

StateDict held_whole(const StateDict& state) {
  auto split = split_state(state);
  for (const auto& [name, tensor] : split.distributed.tensors()) {
    const auto& impl = *dtensor::find_impl(tensor);
    refuse_partial(name, impl.layout()->placements);
    if (impl.layout()->mesh.coordinate() == nullptr || impl.local().sizes() != impl.sizes()) {
      throw CheckpointError(
          fmt::format("{} is a distributed tensor, of which this rank has a part alone: save with {{.sharded = true}}, "
                      "so that each rank writes its own",
                      printable(name)));
    }
    split.plain.set(name, impl.local());
  }
  return std::move(split.plain);
}

void refuse_distributed(const StateDict& state) {
  for (const auto& [name, tensor] : state.tensors()) {
    if (!is_dtensor(tensor)) continue;
    throw CheckpointError(fmt::format(
        "{} is a distributed tensor, which belongs to all ranks: use add(), not add_per_rank()", printable(name)));
  }
}

at::Tensor saved_for(const at::Tensor& target, const at::Tensor& saved) {
  const auto whole = dtensor::whole_of(target);
  const auto* const impl = dtensor::find_impl(whole);
  // It may have been read as this rank's part already (read_folder.h).
  const auto* const saved_impl = dtensor::find_impl(saved);
  if (saved_impl != nullptr && (impl == nullptr || !dtensor::equal(saved_impl->layout(), impl->layout()))) {
    throw CheckpointError("it goes into several tensors, which lie differently");
  }
  if (impl == nullptr) return saved;
  const auto& layout = impl->layout();
  if (is_partial_anywhere(layout->placements)) {
    throw CheckpointError(fmt::format("the tensor here is {}, whose values no rank has: nothing can be loaded into it",
                                      to_string(layout->placements)));
  }
  auto local = saved_impl != nullptr ? saved_impl->local() : dtensor::distribute_local(saved, *layout, std::nullopt);
  return is_dtensor(target) ? dtensor::wrap(std::move(local), layout, whole.sizes()) : local;
}

}  // namespace cohort
