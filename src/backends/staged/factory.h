// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/device.h>
#include <cohort/process_group.h>

namespace cohort::staged {

/// Memory of `device` for a group on host memory; throws ValueError if there is no such device or no driver.
BackendPtr make_backend(ProcessGroupPtr host, const Device& device);

}  // namespace cohort::staged
