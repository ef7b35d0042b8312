// SPDX-License-Identifier: BSD-3-Clause
// Expected: core includes what belongs to store; torch outside its layer.
#include <torch/torch.h>

#include "store/wire.h"
