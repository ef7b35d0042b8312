// SPDX-License-Identifier: BSD-3-Clause
//
// Which gradients travel together. Buckets hold one dtype of one device; a bucket is closed by the gradient that makes
// it as large as its limit, so it may overshoot, and one that is too large joins the open bucket and closes it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace cohort::ddp {

inline constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

struct TensorInfo {
  std::size_t bytes = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool is_sparse = false;  ///< its gradient is expected to be: it travels alone
};

struct AssignedBucket {
  std::vector<std::size_t> parameters{};
  std::size_t limit = 0;  ///< 0 where it is sparse

  friend bool operator==(const AssignedBucket&, const AssignedBucket&) = default;
};

/// Limits in bytes: each (dtype, device) has its own place in them, one further with each bucket it closes, and stays
/// at the last. `order`: the order in which the tensors come; without it as they are, and the buckets are then sorted
/// by their first.
std::vector<AssignedBucket> assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> limits,
                                           std::span<const std::size_t> order = {});

/// For ranks to agree on one assignment.
std::string to_bytes(std::span<const AssignedBucket> buckets);
/// An IndexError for anything that is no assignment of `parameters` parameters.
std::vector<AssignedBucket> buckets_from_bytes(const std::string& bytes, std::size_t parameters);

}  // namespace cohort::ddp
