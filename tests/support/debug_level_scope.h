// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/debug_level.h>

namespace cohort::test {

/// Sets the debug level of the process for a scope.
class DebugLevelScope {
 public:
  explicit DebugLevelScope(DebugLevel level) : before_(debug_level()) { set_debug_level(level); }
  ~DebugLevelScope() { set_debug_level(before_); }
  DebugLevelScope(const DebugLevelScope&) = delete;
  DebugLevelScope& operator=(const DebugLevelScope&) = delete;

 private:
  DebugLevel before_;
};

}  // namespace cohort::test
