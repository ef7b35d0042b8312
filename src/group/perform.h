// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>
#include <cohort/operation.h>

namespace cohort::detail {

/// Has the backend perform an operation, by itself or as part of a batch. What backends have no function for (an
/// all-reduce of several buffers per rank) is done around theirs. Returns what Backend::perform does.
int perform(Backend& backend, const Operation& op, Call& call);

}  // namespace cohort::detail
