// SPDX-License-Identifier: BSD-3-Clause
//
// `cohort run` on each of several hosts, with a secret, as a user would start it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "hosts.h"
#include "program.h"
#include "support/temporary.h"

namespace cohort::test {

struct JobOptions {
  int ranks_per_host = 2;
  Variables variables{};
  Command flags{};  ///< for `cohort run`
};

class Job {
 public:
  Job(const Hosts& hosts, const Command& program, const JobOptions& options = {});

  int hosts() const { return static_cast<int>(launchers_.size()); }
  int ranks() const { return hosts() * ranks_per_host_; }
  Program& launcher(int host) { return launchers_[static_cast<std::size_t>(host)]; }
  /// Whether the output of every rank contains `text` within this time.
  bool wait_for_all(const std::string& text, std::chrono::seconds at_most);
  /// The exit status of each launcher; -1 if it did not end in time.
  std::vector<int> wait(std::chrono::seconds at_most);
  /// The output of all launchers, in the order of the hosts.
  std::string output() const;
  /// The lines of one rank, without the prefix "[rank N] ".
  std::vector<std::string> lines_of(int rank) const;

 private:
  TemporaryFolder folder_;
  int ranks_per_host_;
  std::vector<Program> launchers_;
};

}  // namespace cohort::test
