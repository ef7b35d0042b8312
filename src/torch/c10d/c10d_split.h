// SPDX-License-Identifier: BSD-3-Clause
//
// Groups that c10d makes out of a group. libtorch 2.14 can, 2.6 cannot, except for NCCL and from Python.
#pragma once

#include <cohort/backend.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace cohort {

/// Whether c10d and the group's backend for this type of device can.
bool can_split(c10d::ProcessGroup& group, at::Device device);

/// Called by all ranks of the group. Null, or a group that is not to be used, on ranks that are not in `part`. Throws
/// NotSupportedError where it cannot, and c10d's errors.
c10::intrusive_ptr<c10d::ProcessGroup> split_in_c10d(c10d::ProcessGroup& group, at::Device device,
                                                     const BackendSplit& part);

}  // namespace cohort
