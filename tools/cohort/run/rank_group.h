// SPDX-License-Identifier: BSD-3-Clause
//
// The ranks of this host in one attempt: starts them, reads their output, and reports the end of each.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "common/cpu_share.h"
#include "common/guard.h"
#include "common/process.h"
#include "run/console.h"
#include "run/rank_environment.h"
#include "run/rank_output.h"

namespace cohort::tool {

struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  ExitStatus status{};
  std::vector<std::string> last_lines{};
};

class RankGroup {
 public:
  struct Setup {
    asio::io_context& loop;
    const LaunchPlan& plan;
    const Guard& guard;
    const Consoles& consoles;
    const CpuShare& cpus;
    const RankEnvironment& environment;
    const std::string& path;  ///< the program's file
    const SignalState& signals;
    const rlimit& open_files;
    int standard_input;  ///< for global rank 0
    std::function<void(const RankEnd&)> on_end;
  };

  /// Starts the ranks. Throws an Error where the system has no room for them all; those that were started are killed.
  explicit RankGroup(const Setup& setup);
  /// Kills what is left, including children of ranks that have ended, and reads the rest of the output.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// Starts another process in place of one that has ended, the n-th for this rank. Throws as the constructor does.
  void replace(const Setup& setup, int local_rank, int n) { start(setup, local_rank, n); }

  void signal_all(int signal) const;
  int running() const { return running_; }

 private:
  struct Rank;
  void start(const Setup& setup, int local_rank, int replacement);
  void ended(Rank& rank);

  std::function<void(const RankEnd&)> on_end_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  int running_ = 0;
};

}  // namespace cohort::tool
