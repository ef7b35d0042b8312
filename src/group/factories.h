// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace cohort {

/// A ValueError for a name that is not registered lists those that are; for one that cannot be used here it says why.
ProcessGroupFactory find_backend(std::string_view name);

struct KnownBackend {
  ProcessGroupFactory factory{};
  /// What this machine or build lacks for it and how to get that; empty if nothing. Null: it needs nothing.
  std::function<std::string()> missing{};

  std::string what_is_missing() const { return missing == nullptr ? std::string() : missing(); }
};
using KnownBackends = std::map<std::string, KnownBackend, std::less<>>;

/// The backends of this library; in src/backends.
KnownBackends builtin_backends();

/// Those of them that cannot be used here, and what it takes.
std::map<std::string, std::string, std::less<>> absent_backends();

}  // namespace cohort
