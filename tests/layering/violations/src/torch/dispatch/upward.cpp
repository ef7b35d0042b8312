// SPDX-License-Identifier: BSD-3-Clause
// Expected: dispatch includes what belongs to capture, in its folder and in a public header.
#include <cohort/torch/capture_watch.h>

#include "torch/capture/recorder.h"
