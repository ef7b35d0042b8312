// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/saved_parts.h"

#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "torch/state/checkpoint_names.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

[[noreturn]] void refuse_tensor(const std::string& name, std::string_view why) {
  throw CheckpointError(fmt::format("the distributed tensor {}: {}", printable(name), why));
}

bool is_marked_complex(const SafetensorsHeader& header, const std::string& name) {
  return header.metadata.contains(std::string(complex_key) + name);
}

/// The shape of the tensor that the header says to have parts of; nothing if it says so of no tensor of this name.
std::optional<std::vector<std::int64_t>> shape_in(const SafetensorsHeader& header, const std::string& name) {
  const auto it = header.metadata.find(std::string(shape_key) + name);
  if (it == header.metadata.end()) return std::nullopt;
  auto shape = text_to_list(it->second);
  if (!shape.has_value() || !count_elements(*shape).has_value()) {
    refuse_tensor(name, fmt::format("its shape is {}", printable(it->second)));
  }
  return shape;
}

}  // namespace

SavedParts saved_whole(std::size_t file, const TensorInfo& info, const SafetensorsHeader& header) {
  SavedParts saved{.dtype = info.dtype, .is_complex = is_marked_complex(header, info.name)};
  for (const auto size : info.shape) saved.shape.push_back(static_cast<std::int64_t>(size));
  if (saved.is_complex) {
    if (saved.shape.empty() || saved.shape.back() != 2 || !info.dtype.starts_with('F')) {
      throw CheckpointError(fmt::format("the tensor {} is not made of pairs", printable(info.name)));
    }
    saved.shape.pop_back();
  }
  saved.parts.push_back({.file = file, .info = info, .box = whole_box(saved.shape)});
  return saved;
}

std::vector<TensorInfo> PartCatalog::take_parts(std::size_t file, const SafetensorsHeader& header) {
  std::vector<TensorInfo> others;
  for (const auto& info : header.tensors) {
    const auto name = parse_part_name(info.name);
    auto shape = name.has_value() ? shape_in(header, name->tensor) : std::nullopt;
    if (!shape.has_value()) {
      others.push_back(info);
      continue;
    }
    auto part = saved_whole(file, info, header);
    if (part.shape != name->box.sizes || name->box.sizes.size() != shape->size()) {
      refuse_tensor(name->tensor,
                    fmt::format("its part {} has shape [{}], and the whole has [{}]", printable(info.name),
                                fmt::join(part.shape, ", "), fmt::join(*shape, ", ")));
    }
    part.parts.front().box = name->box;
    add_part(name->tensor, *std::move(shape), part);
  }
  return others;
}

void PartCatalog::add_part(const std::string& name, std::vector<std::int64_t> shape, const SavedParts& part) {
  const auto [it, is_new] = tensors_.try_emplace(name);
  auto& saved = it->second;
  if (is_new) {
    saved = {.shape = std::move(shape), .dtype = part.dtype, .is_complex = part.is_complex};
  } else if (saved.shape != shape || saved.dtype != part.dtype || saved.is_complex != part.is_complex) {
    refuse_tensor(name, fmt::format("its parts are of {} and shape [{}], and of {} and shape [{}]", saved.dtype,
                                    fmt::join(saved.shape, ", "), part.dtype, fmt::join(shape, ", ")));
  }
  saved.parts.push_back(part.parts.front());
}

void PartCatalog::check() const {
  for (const auto& [name, saved] : tensors_) {
    std::vector<Box> boxes;
    for (const auto& part : saved.parts) boxes.push_back(part.box);
    try {
      check_tiling(saved.shape, boxes);
    } catch (const CheckpointError& e) {
      refuse_tensor(name, e.message());
    }
  }
}

}  // namespace cohort
