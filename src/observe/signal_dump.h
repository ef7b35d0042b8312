// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "core/file_descriptor.h"

namespace cohort::observe {

/// While it exists, a signal has a thread call `action`. One at a time in a process. The signal's handler only writes
/// to a file descriptor, which is all that is safe in one; a forked child inherits the handler, where it does nothing.
class SignalDump {
 public:
  SignalDump(int signal, std::function<void()> action);
  /// Brings the earlier handling back and joins the thread.
  ~SignalDump();
  SignalDump(const SignalDump&) = delete;
  SignalDump& operator=(const SignalDump&) = delete;

 private:
  void run();

  int signal_;
  std::function<void()> action_;
  int event_;
  FileDescriptor end_;
  struct sigaction earlier_ {};
  std::thread thread_;
};

}  // namespace cohort::observe
