// SPDX-License-Identifier: BSD-3-Clause
//
// One child process: started in a process group of its own, watched through a pidfd, and not reaped before its group
// has been killed, so that the group's number cannot come to mean somebody else.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <bitset>
#include <string>
#include <vector>

#include "common/exit_status.h"
#include "common/guard.h"
#include "core/file_descriptor.h"

namespace cohort::tool {

/// The signal state the launcher was started with, which its children shall have too.
struct SignalState {
  std::bitset<NSIG> ignored{};
  sigset_t blocked{};

  static SignalState now();
};

struct ProcessSpec {
  std::string path{};
  std::vector<std::string> arguments{};    ///< argv, the program's name included
  std::vector<std::string> environment{};  ///< NAME=value
  int input = -1, output = -1, error = -1;
  const cpu_set_t* cpus = nullptr;
  SignalState signals{};
  rlimit open_files{};  ///< the limit the launcher was started with
};

/// Lets the launcher open as many files as it may: it needs a few for each rank. Returns the limit as it was.
rlimit raise_open_files();

class Process {
 public:
  /// Error where the system has no room for one more process. That the program cannot be executed is a process that
  /// ends with 126 or 127 and says why on its standard error.
  Process(const ProcessSpec& spec, const Guard& guard);
  /// Kills what is left of the group.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  /// After that.
  ExitStatus status() const;
  /// To the whole group; wrapper scripts do not pass signals on.
  void signal_group(int signal) const noexcept { ::kill(-pid_, signal); }

 private:
  const Guard& guard_;
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
};

}  // namespace cohort::tool
