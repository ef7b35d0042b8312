// SPDX-License-Identifier: BSD-3-Clause
//
// A program that a test runs, possibly on another host (see hosts.h), with its output in a file and a time limit for
// its end.
//
//   Program rank({"./rank", "3"}, {.variables = {{"RANK", "3"}}, .network = hosts.network(1)});
//   rank.wait_for_output("ready", 1, 20s);
//   EXPECT_EQ(rank.wait(60s), 0) << rank.output();
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace cohort::test {

using Command = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

struct ProgramOptions {
  Variables variables{};  ///< the only ones besides PATH and HOME
  std::string network{};  ///< file of a network namespace; empty for the current one
};

class Program {
 public:
  explicit Program(const Command& command, const ProgramOptions& options = {});
  Program(Program&&) = default;
  /// Terminates it and what it has started in its process group; kills them if they do not end.
  ~Program();

  pid_t pid() const { return pid_.number; }
  void signal(int number) const;
  /// Both streams so far.
  std::string output() const;
  /// Whether the output contains `text` that often, within this time and before the program's end.
  bool wait_for_output(const std::string& text, std::size_t times, std::chrono::milliseconds at_most) const;
  /// The exit status as a shell counts it (128 + signal); nullopt if it still runs.
  std::optional<int> wait(std::chrono::milliseconds at_most);

 private:
  /// Moves with its owner.
  struct Pid {
    Pid() = default;
    Pid(Pid&& other) noexcept : number(std::exchange(other.number, -1)) {}
    Pid& operator=(Pid&&) = delete;
    pid_t number = -1;
  };
  bool ends_within(std::chrono::milliseconds time) const;

  Pid pid_;
  FileDescriptor end_;     ///< readable when it has ended
  FileDescriptor output_;  ///< a file without a name
  std::optional<int> status_;
};

/// The result of a program that was run to its end.
struct Finished {
  int status = -1;
  std::string output{};
};
Finished finish(const Command& command, const ProgramOptions& options = {},
                std::chrono::seconds at_most = std::chrono::seconds(30));

bool is_installed(const std::string& program);

/// How often `word` occurs in `text`.
std::size_t count_of(const std::string& text, const std::string& word);

}  // namespace cohort::test
