// SPDX-License-Identifier: BSD-3-Clause
//
// What the global sizes of an operator's arguments must fulfil. Every rank knows them, so all ranks throw alike and
// before any communication. The local parts cannot tell: 4 x 255 times 256 x 4 may fit on one rank and not on the next,
// and a bias that is as long as a part would be added to every part.
#pragma once

#include <string_view>

#include "torch/dtensor/rule.h"

namespace cohort::dtensor {

/// The check for this operator ("aten::mm"), or null: then its rule compares the sizes (broadcast_sizes()) or needs
/// nothing of them.
SizeCheck size_check_of(std::string_view op);

}  // namespace cohort::dtensor
