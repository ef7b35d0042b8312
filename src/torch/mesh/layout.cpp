// SPDX-License-Identifier: BSD-3-Clause
#include "torch/mesh/layout.h"

#include <algorithm>

namespace cohort::detail {

std::vector<Offsets> row_major_offsets(const std::vector<std::int64_t>& shape) {
  std::vector<Offsets> dims(shape.size());
  std::int64_t stride = 1;
  for (auto dim = shape.size(); dim-- > 0;) {
    dims[dim].reserve(static_cast<std::size_t>(shape[dim]));
    for (std::int64_t index = 0; index < shape[dim]; ++index) dims[dim].push_back(index * stride);
    stride *= shape[dim];
  }
  return dims;
}

Offsets merged(const std::vector<const Offsets*>& dims) {
  Offsets all{0};
  for (const auto* const dim : dims) {
    Offsets longer;
    longer.reserve(all.size() * dim->size());
    for (const auto outer : all) {
      for (const auto inner : *dim) longer.push_back(outer + inner);
    }
    all = std::move(longer);
  }
  return all;
}

std::optional<std::vector<Offsets>> divided(const Offsets& dim, const std::vector<std::int64_t>& sizes) {
  std::vector<Offsets> parts(sizes.size());
  std::vector<const Offsets*> pointers(sizes.size());
  std::size_t stride = 1;
  for (auto part = sizes.size(); part-- > 0;) {
    for (std::size_t index = 0; index < static_cast<std::size_t>(sizes[part]); ++index) {
      parts[part].push_back(dim[index * stride]);
    }
    stride *= static_cast<std::size_t>(sizes[part]);
    pointers[part] = &parts[part];
  }
  if (merged(pointers) != dim) return std::nullopt;
  return parts;
}

bool are_disjoint(const std::vector<const Offsets*>& dims) {
  auto all = merged(dims);
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

namespace {

/// Calls `fn(index, position)` for all positions of one copy of the dimension after the other, in its order. The lowest
/// position that is in no copy yet begins the next one, because offsets are not negative.
template <class Fn>
void for_each_of_copies(const Offsets& dim, std::int64_t count, const Fn& fn) {
  std::vector<bool> is_taken(static_cast<std::size_t>(count));
  for (std::int64_t base = 0; base < count; ++base) {
    if (is_taken[static_cast<std::size_t>(base)]) continue;
    for (std::size_t index = 0; index < dim.size(); ++index) {
      is_taken[static_cast<std::size_t>(base + dim[index])] = true;
      fn(index, base + dim[index]);
    }
  }
}

}  // namespace

std::vector<std::vector<std::int64_t>> copies_of(const Offsets& dim, std::int64_t count) {
  std::vector<std::vector<std::int64_t>> copies;
  copies.reserve(static_cast<std::size_t>(count) / dim.size());
  for_each_of_copies(dim, count, [&](std::size_t index, std::int64_t position) {
    if (index == 0) copies.emplace_back().reserve(dim.size());
    copies.back().push_back(position);
  });
  return copies;
}

std::int64_t index_along(const Offsets& dim, std::int64_t count, std::int64_t position) {
  std::int64_t found = -1;
  for_each_of_copies(dim, count, [&](std::size_t index, std::int64_t each) {
    if (each == position) found = static_cast<std::int64_t>(index);
  });
  return found;
}

}  // namespace cohort::detail
