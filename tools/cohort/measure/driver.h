// SPDX-License-Identifier: BSD-3-Clause
//
// A driver is a program that measures one system on request: it says "ready", then answers each command line on its
// standard input (command.h) with one line on its standard output, and ends when the input does. Between commands all
// of its ranks sleep, so that other drivers can be measured in turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "measure/system.h"

namespace cohort::measure {

inline constexpr std::string_view ready_line = "ready";

/// Reads lines from a file descriptor; waiting for them uses no CPU.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  /// nullopt at the end of the input.
  std::optional<std::string> next();
  /// The same, but waits for at most `milliseconds`; `timed_out` tells a timeout from the end of the input.
  std::optional<std::string> next(int milliseconds, bool& timed_out);

 private:
  int fd_;
  std::string pending_;
};

/// Returns false when nobody reads any more.
bool write_line(int fd, std::string_view line);

/// Serves commands as one rank: every rank gets the same lines from its `next`, and rank 0 answers. Returns at the end
/// of the lines. An error of the system is answered and then rethrown, since the ranks may no longer agree.
using NextLine = std::function<std::optional<std::string>()>;
void serve(System& system, const NextLine& next);

/// Makes the system of a rank; may communicate with the other ranks.
using MakeSystem = std::function<std::unique_ptr<System>(int rank, int size)>;

/// The driver of a job that was started by `cohort run`, as one of its ranks: rank 0 passes its input on to the others
/// through the job's store. Returns the exit code; the launcher ends a job of which one rank has failed.
int drive(const MakeSystem& make);
/// The driver of ranks that are threads of this process.
int drive_threads(int size, const MakeSystem& make);

}  // namespace cohort::measure
