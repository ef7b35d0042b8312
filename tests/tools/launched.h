// SPDX-License-Identifier: BSD-3-Clause
//
// The real `cohort` as a child of the test: what it prints and how it ends, both within a hard deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace cohort::test {

using Strings = std::vector<std::string>;

struct Outcome {
  int code = -1;    ///< as a shell counts: 128 + signal
  std::string out;  ///< of a terminal: both streams
  std::string err;
};

struct LaunchOptions {
  std::map<std::string, std::string> variables{};  ///< the only ones, beside the usual PATH
  std::string input{};                             ///< standard input; empty: /dev/null
  bool in_terminal = false;
  bool in_own_group = false;  ///< as a shell starts a job, so that it can be stopped and continued
};

class Launched {
 public:
  /// `cohort` with these arguments.
  explicit Launched(const Strings& arguments, const LaunchOptions& options = {});
  /// Kills it if it is still there.
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Types this, in a terminal.
  void type(const std::string& text) const;
  /// Waits until standard output has `text` that often; throws at the deadline.
  void wait_for_output(const std::string& text, std::size_t times = 1);
  /// Nobody reads its standard output any more.
  void close_output() { out_.reset(); }
  /// Waits for its end, and for everyone who holds its output to let go of it.
  Outcome finish();

  const std::string& out() const { return outcome_.out; }

 private:
  void start_in_terminal(const Strings& arguments, const LaunchOptions& options);
  void start_with_pipes(const Strings& arguments, const LaunchOptions& options);
  bool read_more(std::chrono::steady_clock::time_point until);

  pid_t pid_ = -1;
  FileDescriptor out_;
  FileDescriptor err_;
  Outcome outcome_;
};

inline Outcome run_cohort(const Strings& arguments, const LaunchOptions& options = {}) {
  return Launched(arguments, options).finish();
}

/// `cohort run -n RANKS sh -c SCRIPT`, with flags in front.
Strings run_script(int ranks, const std::string& script, Strings flags = {});

/// The lines that begin with `prefix`, without it, sorted.
Strings lines_of(const std::string& text, const std::string& prefix);

/// All that `text` says behind `word`, as numbers: "pid 12 pid 13".
std::vector<pid_t> numbers_after(const std::string& text, const std::string& word);

/// As in /proc: 'S' sleeping, 'T' stopped, 'Z' waiting to be collected by its parent; '\0': it is not there.
char process_state(pid_t pid);
/// Waits until it is stopped; false at the deadline.
bool is_stopped_soon(pid_t pid);
/// Whether it is there and not merely waiting to be collected by its parent.
bool is_running(pid_t pid);
/// Waits for that to end; false at the deadline.
bool is_gone_soon(pid_t pid);

/// A port that is free now.
int free_port();

}  // namespace cohort::test
