// SPDX-License-Identifier: BSD-3-Clause
//
// Which gradients are reduced together. A bucket holds one dtype on one device. The gradient that makes it as large as
// its limit closes it, so it may exceed the limit; a gradient that is too large joins the open bucket and closes it.
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
  bool is_sparse = false;  ///< its gradient is expected to be sparse and gets a bucket of its own
};

struct AssignedBucket {
  std::vector<std::size_t> parameters{};
  std::size_t limit = 0;  ///< 0 where it is sparse

  friend bool operator==(const AssignedBucket&, const AssignedBucket&) = default;
};

/// Limits are in bytes. Each pair of dtype and device takes the first limit for its first bucket, the next one for its
/// next bucket, and the last one for all that follow. `order` is the order in which gradients arrive; without it they
/// are taken in index order, and the buckets are sorted by their lowest index.
std::vector<AssignedBucket> assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> limits,
                                           std::span<const std::size_t> order = {});

/// An assignment as bytes, for ranks to agree on one.
std::string to_bytes(std::span<const AssignedBucket> buckets);
/// An IndexError if the bytes are not an assignment of `parameters` parameters.
std::vector<AssignedBucket> buckets_from_bytes(const std::string& bytes, std::size_t parameters);

}  // namespace cohort::ddp
