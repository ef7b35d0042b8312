// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/leave_at_exit.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "core/immortal.h"

namespace cohort {

namespace {

/// Process-wide and thread-safe: the groups of this process that are not gone yet.
struct Present {
  std::mutex mutex;
  std::list<LeaveAtExit::Entry> entries;

  static Present& instance() {
    static Immortal<Present> present;
    static const int registered = std::atexit([] { instance().leave_all(); });
    static_cast<void>(registered);
    return *present;
  }
  void leave_all() {
    const std::lock_guard lock(mutex);
    for (auto& entry : entries) {
      const auto leave = std::exchange(entry.leave, nullptr);
      if (leave != nullptr && entry.process == ::getpid()) leave();
    }
  }
};

}  // namespace

LeaveAtExit::LeaveAtExit(std::function<void()> leave) {
  auto& present = Present::instance();
  const std::lock_guard lock(present.mutex);
  place_ = present.entries.insert(present.entries.end(), {.leave = std::move(leave), .process = ::getpid()});
}

LeaveAtExit::~LeaveAtExit() {
  auto& present = Present::instance();
  const std::lock_guard lock(present.mutex);
  present.entries.erase(place_);
}

}  // namespace cohort
