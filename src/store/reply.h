// SPDX-License-Identifier: BSD-3-Clause
//
// From a reply to the result or the error that the caller gets. All stores go through here, so their errors read alike.
#pragma once

#include <cohort/store_request.h>

#include <string_view>
#include <vector>

#include "store/wire.h"

namespace cohort {

/// Copies the values, except one that was popped: that is moved.
StoreReply owned(const wire::Reply& reply);

/// Throws the error for a status that is not ok. `values` are those of the reply: the keys that were missing, or the
/// reason of a refusal.
[[noreturn]] void throw_store_error(const StoreRequest& request, wire::Status status,
                                    const std::vector<std::string_view>& values);

}  // namespace cohort
