// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace cohort {

/// Throws a ValueError that lists the registered names if `name` is not one of them, or says why the backend cannot be
/// used on this machine.
ProcessGroupFactory find_backend(std::string_view name);

struct KnownBackend {
  ProcessGroupFactory factory{};
  /// Returns what this machine or build lacks for the backend and how to get it; empty if nothing is missing. Null: the
  /// backend always works.
  std::function<std::string()> missing{};

  std::string what_is_missing() const { return missing == nullptr ? std::string() : missing(); }
};
using KnownBackends = std::map<std::string, KnownBackend, std::less<>>;

/// The backends of this library. Defined in src/backends.
KnownBackends builtin_backends();

/// The registered backends that cannot be used on this machine, each with what is missing.
std::map<std::string, std::string, std::less<>> absent_backends();

}  // namespace cohort
