// SPDX-License-Identifier: BSD-3-Clause
//
// Where the ranks of a mesh lie in the flat, row-major list of ranks of the mesh that it was made from (its root).
//
// A dimension is a list of offsets, one for each index along it, beginning with 0: the rank at (i, j) is at position
// base + first[i] + second[j] of the list. A sliced mesh has the same offsets on all ranks, but one base for each of
// its copies. Lists of offsets, unlike a size and a stride, also describe dimensions that were merged although others
// lie between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cohort::detail {

using Offsets = std::vector<std::int64_t>;

/// The dimensions of an array of this shape.
std::vector<Offsets> row_major_offsets(const std::vector<std::int64_t>& shape);

/// The dimensions merged into one, in row-major order. For no dimensions: one index.
Offsets merged(const std::vector<const Offsets*>& dims);

/// The dimension divided into several of these sizes, whose product is its size; nullopt if no such dimensions exist,
/// because it was merged from dimensions of other sizes.
std::optional<std::vector<Offsets>> divided(const Offsets& dim, const std::vector<std::int64_t>& sizes);

/// Whether different indices of the merged dimensions always are different positions.
bool are_disjoint(const std::vector<const Offsets*>& dims);

/// Divides the positions 0 to count - 1 into the copies of a dimension, each in the order of the dimension.
std::vector<std::vector<std::int64_t>> copies_of(const Offsets& dim, std::int64_t count);

/// The index along a dimension of one of these positions.
std::int64_t index_along(const Offsets& dim, std::int64_t count, std::int64_t position);

}  // namespace cohort::detail
