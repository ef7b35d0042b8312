// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "core/file_descriptor.h"

namespace cohort::observe {

/// During its lifetime, a signal makes a thread call `action`. There may be only one in a process at a time. The signal
/// handler only writes to a file descriptor, which is async-signal-safe. A forked child inherits the handler, which
/// does nothing there.
class SignalDump {
 public:
  SignalDump(int signal, std::function<void()> action);
  /// Restores the earlier handling of the signal and joins the thread.
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
