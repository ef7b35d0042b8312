// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of stream-ordered backends (completion.h): enqueued on the caller's thread, in turn, and ended by whoever
// finds the device through.
#pragma once

#include <memory>

#include "group/process_group_state.h"

namespace cohort {

/// Collectives in issue order; point-to-point as it comes, since the backend keeps its own order there.
Work run_on_stream(const std::shared_ptr<detail::GroupState>& state, Backend& backend, const Operation& op,
                   const detail::SubmitOptions& options);

}  // namespace cohort
