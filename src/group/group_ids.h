// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/process_group.h>

#include <string>
#include <string_view>

namespace cohort {

/// Lets resolve_group() find a group by its id while it lives.
void remember_group(const std::string& id, const ProcessGroupPtr& group);
void forget_group(const std::string& id, const ProcessGroup* group);

/// An id that all ranks of a group find in its store: the first to ask makes it up.
std::string agree_on_id(Store& store, const std::string& backend);
/// One for a group without a store; it begins with the prefix.
inline constexpr std::string_view local_id_prefix = "local-";
std::string local_id();

}  // namespace cohort
