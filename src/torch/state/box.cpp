// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/box.h"

#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "torch/state/value_text.h"

namespace cohort {

namespace {

/// Boxes have two to the power of this many corners in check_tiling. Meshes have fewer dimensions.
constexpr std::size_t most_cut_dimensions = 10;

/// The dimensions in which not all boxes span the whole.
std::vector<std::size_t> cut_dimensions(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (std::any_of(boxes.begin(), boxes.end(), [&](const Box& box) { return box.sizes[dim] != shape[dim]; })) {
      dims.push_back(dim);
    }
  }
  return dims;
}

/// How often each corner occurs, with the sign that it has in the box.
using Corners = std::map<std::vector<std::int64_t>, std::int64_t>;

void add_corners(Corners& corners, const Box& box, const std::vector<std::size_t>& dims, std::int64_t times) {
  for (std::size_t which = 0; which < (std::size_t{1} << dims.size()); ++which) {
    std::vector<std::int64_t> corner;
    auto sign = times;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      const bool at_end = (which >> i & 1U) != 0;
      corner.push_back(box.offsets[dims[i]] + (at_end ? box.sizes[dims[i]] : 0));
      if (at_end) sign = -sign;
    }
    corners[std::move(corner)] += sign;
  }
}

std::string text_of(const Box& box) {
  return part_name("", box);
}

}  // namespace

std::optional<std::int64_t> count_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t all = 1;
  bool empty = false;
  for (const auto size : shape) {
    if (size < 0 || __builtin_mul_overflow(all, std::max<std::int64_t>(size, 1), &all)) return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : all;
}

Box whole_box(const std::vector<std::int64_t>& shape) {
  return {.offsets = std::vector<std::int64_t>(shape.size()), .sizes = shape};
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common;
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const auto begin = std::max(a.offsets[dim], b.offsets[dim]);
    const auto end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (begin >= end) return std::nullopt;
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

std::string part_name(std::string_view tensor, const Box& box) {
  std::vector<std::string> slices;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
    slices.push_back(fmt::format("{}:{}", box.offsets[dim], box.offsets[dim] + box.sizes[dim]));
  }
  return fmt::format("{}[{}]", tensor, fmt::join(slices, ","));
}

std::optional<PartName> parse_part_name(std::string_view name) {
  const auto open = name.rfind('[');
  if (open == std::string_view::npos || !name.ends_with(']')) return std::nullopt;
  PartName part{.tensor = std::string(name.substr(0, open))};
  auto slices = name.substr(open + 1, name.size() - open - 2);
  while (!slices.empty()) {
    const auto comma = slices.find(',');
    const auto slice = slices.substr(0, comma);
    const auto colon = slice.find(':');
    if (colon == std::string_view::npos || comma + 1 == slices.size()) return std::nullopt;
    const auto begin = text_to_integer(slice.substr(0, colon));
    const auto end = text_to_integer(slice.substr(colon + 1));
    if (!begin.has_value() || !end.has_value() || *begin < 0 || *end < *begin) return std::nullopt;
    part.box.offsets.push_back(*begin);
    part.box.sizes.push_back(*end - *begin);
    slices.remove_prefix(comma == std::string_view::npos ? slices.size() : comma + 1);
  }
  return part;
}

void check_tiling(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
  const auto total = count_elements(shape);
  if (!total.has_value()) throw CheckpointError(fmt::format("its shape [{}] is not one", fmt::join(shape, ", ")));
  std::int64_t covered = 0;
  for (const auto& box : boxes) {
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (box.offsets[dim] <= shape[dim] && box.sizes[dim] <= shape[dim] - box.offsets[dim]) continue;
      throw CheckpointError(
          fmt::format("its part {} lies outside its shape [{}]", text_of(box), fmt::join(shape, ", ")));
    }
    // Each part has at most `total` elements.
    if (__builtin_add_overflow(covered, count_elements(box.sizes).value_or(0), &covered) || covered > *total) {
      throw CheckpointError(fmt::format("its parts overlap: {} has elements that others have too", text_of(box)));
    }
  }
  if (covered < *total) {
    throw CheckpointError(fmt::format("parts of it are missing: {} of {} elements are there", covered, *total));
  }
  if (*total == 0) return;
  // How often an element is covered is a sum of products of steps, one for each box and dimension, which is determined
  // by where the steps are: the boxes cover everything once if and only if their corners, with signs, add up to those
  // of the whole.
  const auto dims = cut_dimensions(shape, boxes);
  if (dims.size() > most_cut_dimensions) {
    throw CheckpointError(
        fmt::format("it is cut in {} dimensions, and {} are the most", dims.size(), most_cut_dimensions));
  }
  Corners corners;
  add_corners(corners, whole_box(shape), dims, -1);
  for (const auto& box : boxes) add_corners(corners, box, dims, 1);
  if (std::any_of(corners.begin(), corners.end(), [](const auto& corner) { return corner.second != 0; })) {
    throw CheckpointError("its parts overlap: some elements are there twice, and others are missing");
  }
}

}  // namespace cohort
