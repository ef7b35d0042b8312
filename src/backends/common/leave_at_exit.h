// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <functional>
#include <list>

namespace cohort {

/// Runs `leave` if the process calls exit() while this object exists: the destructors of objects on the stack do not
/// run then, and a rank that ends in good order must still be able to say so. It does not run in a forked child, nor
/// when the process is killed or calls _exit(). `leave` is called at most once, on any thread, and must not throw.
class LeaveAtExit {
 public:
  explicit LeaveAtExit(std::function<void()> leave);
  /// If `leave` is being called, the destructor waits until it has returned.
  ~LeaveAtExit();
  LeaveAtExit(const LeaveAtExit&) = delete;
  LeaveAtExit& operator=(const LeaveAtExit&) = delete;

  struct Entry {
    std::function<void()> leave{};  ///< null once it was called
    pid_t process = 0;
  };

 private:
  std::list<Entry>::iterator place_;
};

}  // namespace cohort
