// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace cohort {

/// The device of a rank's contribution to a reduction if it has no tensors: the host if the group works on host memory,
/// otherwise the device that the group is bound to.
inline at::Device device_without_tensors(const ProcessGroup& group) {
  const auto types = group.device_types();
  if (std::find(types.begin(), types.end(), DeviceType::cpu) != types.end()) return at::kCPU;
  const auto bound = group.bound_device();
  return {at::kCUDA, static_cast<at::DeviceIndex>(bound ? bound->index : -1)};
}

/// Combines the ranks' numbers. A group without a backend for host memory (nccl alone) gathers them as bytes, which
/// every group can.
template <class Combine>
void combine_numbers(ProcessGroup& group, std::vector<std::int32_t>& numbers, ReduceOp op, Combine combine) {
  const auto types = group.device_types();
  if (std::find(types.begin(), types.end(), DeviceType::cpu) != types.end()) {
    group.all_reduce(std::span(numbers), {.op = op});
    return;
  }
  const auto bytes = numbers.size() * sizeof(std::int32_t);
  const auto all = group.all_gather_bytes({reinterpret_cast<const char*>(numbers.data()), bytes});
  std::vector<std::int32_t> theirs(numbers.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(theirs.data(), all[rank].data(), bytes);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = rank == 0 ? theirs[i] : combine(numbers[i], theirs[i]);
    }
  }
}

inline void sum_numbers(ProcessGroup& group, std::vector<std::int32_t>& numbers) {
  combine_numbers(group, numbers, ReduceOp::sum(), std::plus<>());
}
inline std::int32_t largest_of(ProcessGroup& group, std::int32_t mine) {
  std::vector<std::int32_t> numbers{mine};
  combine_numbers(group, numbers, ReduceOp::max(), [](std::int32_t a, std::int32_t b) { return std::max(a, b); });
  return numbers[0];
}

}  // namespace cohort
