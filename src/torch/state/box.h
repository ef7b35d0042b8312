// SPDX-License-Identifier: BSD-3-Clause
//
// A box of a tensor: consecutive indices in each dimension. The ranks' parts of a distributed tensor are saved as
// boxes, each as a tensor of its own, whose name says which box of which tensor it is, in the notation of Python's
// slices:
//
//   model.weight[0:4,8:16]        rows 0 to 3 and columns 8 to 15 of model.weight
//   model.scale[]                 a tensor without dimensions
//
// This file knows neither libtorch nor files.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

struct Box {
  std::vector<std::int64_t> offsets{};
  std::vector<std::int64_t> sizes{};  ///< as many

  auto operator<=>(const Box&) const = default;
};

/// The number of elements of a tensor of this shape; nothing if a size is negative, or if there are more than can be
/// counted, which a dimension of 0 does not excuse.
std::optional<std::int64_t> count_elements(const std::vector<std::int64_t>& shape);

Box whole_box(const std::vector<std::int64_t>& shape);
/// Nothing if they have no element in common. Both have as many dimensions.
std::optional<Box> intersection(const Box& a, const Box& b);

std::string part_name(std::string_view tensor, const Box& box);
struct PartName {
  std::string tensor{};
  Box box{};
};
/// Nothing if it is not such a name. Sizes and offsets are not negative.
std::optional<PartName> parse_part_name(std::string_view name);

/// Throws a CheckpointError unless each element of a tensor of this shape is in exactly one of the boxes, which have as
/// many dimensions. It says what is wrong, without the name of the tensor. Takes time in proportion to the number of
/// the boxes (times its logarithm).
void check_tiling(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes);

}  // namespace cohort
