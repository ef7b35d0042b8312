// SPDX-License-Identifier: BSD-3-Clause
//
// Two devices of one type on host memory, as a program may add them to libtorch (PrivateUse1): memory of their own, a
// current device for each thread, and a thread of autograd's for each device. Operators run on the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace cohort::test {

inline constexpr int host_devices = 2;

/// Makes them known to libtorch and to Cohort; called before autograd has started its threads.
void register_host_devices();

at::Device host_device(int index);

}  // namespace cohort::test
