// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <map>
#include <string>
#include <string_view>

namespace cohort {

/// A ValueError for a name that is not registered lists those that are, and says what is known of this one.
ProcessGroupFactory find_backend(std::string_view name);

/// The backends of this library, by name; in src/backends.
std::map<std::string, ProcessGroupFactory, std::less<>> builtin_backends();

/// Backends that exist by name but not in this build, and what it takes to have them.
std::map<std::string, std::string, std::less<>> absent_backends();

}  // namespace cohort
