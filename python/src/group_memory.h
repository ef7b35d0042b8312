// SPDX-License-Identifier: BSD-3-Clause
//
// Lets a thread allocate its tensors in memory of a group for a while. PyTorch 1.13's reducer asks nobody where its
// buckets are to be, so they are put there through the allocator of all tensors on the host. Newer versions ask the
// backend.
#pragma once

#include <cohort/process_group.h>

namespace cohort::python {

/// Tensors of at least `least_bucket_in_group_memory` that this thread allocates from now on are in memory of this
/// group; null: in ordinary memory again.
void allocate_tensors_in(ProcessGroupPtr group);

}  // namespace cohort::python
