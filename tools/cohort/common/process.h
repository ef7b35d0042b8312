// SPDX-License-Identifier: BSD-3-Clause
//
// One child process: started in a process group of its own, watched through a pidfd, and not reaped before its group
// has been killed, so that the group's number cannot be reused before that.
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

/// The signal state with which the launcher was started; its children get the same.
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

/// Raises the limit on open files as far as permitted: the launcher needs a few for each rank. Returns the old limit.
rlimit raise_open_files();

class Process {
 public:
  /// Throws an Error where the system has no room for another process. Where the program cannot be executed, the
  /// process ends with 126 or 127 and prints the reason to its standard error.
  Process(const ProcessSpec& spec, const Guard& guard);
  /// Kills what is left of the group.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  /// Waits for the end of the process.
  ExitStatus status() const;
  /// Sends the signal to the whole group, since wrapper scripts do not pass signals on.
  void signal_group(int signal) const noexcept { ::kill(-pid_, signal); }

 private:
  const Guard& guard_;
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
};

}  // namespace cohort::tool
