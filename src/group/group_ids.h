// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

#include <string>
#include <string_view>

namespace cohort {

/// Lets resolve_group() find a group by its id during the group's lifetime.
COHORT_API void remember_group(const std::string& id, const ProcessGroupPtr& group);
void forget_group(const std::string& id, const ProcessGroup* group);

/// Returns an id that all ranks of a group share through its store: the first rank to ask chooses it.
std::string agree_on_id(Store& store, const std::string& backend);
/// An id for a group without a store. It begins with the prefix.
inline constexpr std::string_view local_id_prefix = "local-";
std::string local_id();
/// 64 bits, as hexadecimal digits.
std::string random_id();

}  // namespace cohort
