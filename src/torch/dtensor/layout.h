// SPDX-License-Identifier: BSD-3-Clause
//
// How a distributed tensor lies on its mesh. Immutable and shared: an operator whose result lies as its argument does
// hands the pointer on, so that comparing layouts is usually comparing pointers.
#pragma once

#include <cohort/torch/mesh.h>
#include <cohort/torch/placement.h>

#include <memory>

namespace cohort::dtensor {

struct Layout {
  DeviceMesh mesh;
  Placements placements;  ///< one for each mesh dimension; dimensions are not negative

  bool operator==(const Layout&) const noexcept = default;
};
using LayoutPtr = std::shared_ptr<const Layout>;

inline bool equal(const LayoutPtr& a, const LayoutPtr& b) noexcept {
  return a == b || *a == *b;
}

}  // namespace cohort::dtensor
