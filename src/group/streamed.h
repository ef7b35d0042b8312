// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of stream-ordered backends (completion.h). They are enqueued on the caller's thread, in turn. The first
// thread to see that the device has finished one of them ends it.
#pragma once

#include <memory>

#include "group/process_group_state.h"

namespace cohort {

/// Collectives are enqueued in issue order. Point-to-point operations are enqueued at once, because the backend orders
/// them itself.
Work run_on_stream(const std::shared_ptr<detail::GroupState>& state, Backend& backend, const Operation& op,
                   const detail::SubmitOptions& options);

}  // namespace cohort
