// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of a c10d group that newer versions have given other names, and warn of the old ones. Templates, so that
// either name can be asked for.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <vector>

namespace cohort::compat {

template <class Group>
auto all_gather_single(Group& group, at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  if constexpr (requires { group.all_gather_single(output, input, options); }) {
    return group.all_gather_single(output, input, options);
  } else {
    return group._allgather_base(output, input, options);
  }
}

template <class Group>
auto reduce_scatter_single(Group& group, at::Tensor& output, at::Tensor& input,
                           const c10d::ReduceScatterOptions& options) {
  if constexpr (requires { group.reduce_scatter_single(output, input, options); }) {
    return group.reduce_scatter_single(output, input, options);
  } else {
    return group._reduce_scatter_base(output, input, options);
  }
}

template <class Group>
auto all_to_all_single(Group& group, at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                       std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  if constexpr (requires { group.all_to_all_single(output, input, output_sizes, input_sizes, options); }) {
    return group.all_to_all_single(output, input, output_sizes, input_sizes, options);
  } else {
    return group.alltoall_base(output, input, output_sizes, input_sizes, options);
  }
}

}  // namespace cohort::compat
