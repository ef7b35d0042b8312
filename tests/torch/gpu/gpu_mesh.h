// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes of ranks that share the one GPU.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/mesh.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "backends/nccl/gpu/gpu_world.h"

namespace cohort::test {

inline const at::Device the_gpu(at::kCUDA, 0);

inline DeviceMesh gpu_mesh(const ProcessGroupPtr& group, const std::vector<std::int64_t>& shape,
                           std::vector<std::string> names = {}) {
  return init_device_mesh("cuda", shape, std::move(names), {.process_group = group});
}

/// On a line of all ranks, and on a square where there are four.
inline void on_gpu_meshes(const GpuRanks& ranks, const std::function<void(const DeviceMesh&)>& body) {
  with_gpu_group(ranks, [&](const ProcessGroupPtr& group) {
    body(gpu_mesh(group, {group->size()}));
    if (group->size() == 4) body(gpu_mesh(group, {2, 2}));
  });
}

inline std::string name_of(const ::testing::TestParamInfo<GpuRanks>& each) {
  return each.param.backend + std::to_string(each.param.size);
}

}  // namespace cohort::test
