// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a plan: one attempt after another, each from the start of this host's ranks to its outcome.
// Everything happens on one thread, in the handlers of one event loop.
#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <optional>

#include "common/cpu_share.h"
#include "common/guard.h"
#include "common/process.h"
#include "run/attempt_outcome.h"
#include "run/console.h"
#include "run/job_store.h"
#include "run/launch_plan.h"
#include "run/losses.h"
#include "run/node_agreement.h"
#include "run/rank_group.h"
#include "run/standard_input.h"

namespace cohort::tool {

class Launcher {
 public:
  Launcher(const LaunchPlan& plan, std::string path, const Guard& guard);

  /// Returns the exit code.
  int run();

 private:
  void begin_attempt();
  void start_ranks(const World& world);
  RankGroup::Setup setup_of(int standard_input);
  void rank_ended(const RankEnd& end);
  /// --keep-going: the job goes on, with a replacement for a rank that failed if one is left.
  void go_on_after(const RankEnd& end);
  bool replace(const RankEnd& end);
  int restarts_used() const { return attempt_ + losses_.replacements(); }
  /// --keep-going: a rank has failed while the ranks were making their first group. A replacement could not take its
  /// place there, so all ranks are started again.
  bool must_start_over(const RankEnd& end) const;
  void all_ranks_ended();
  /// The outcome as far as this host can tell.
  AttemptOutcome local_outcome() const;
  void on_outcome(const AttemptOutcome& outcome);
  void await_signal();
  void on_signal(int signal);
  /// Stops the ranks, then this process; when it is continued, continues the ranks.
  void suspend();
  /// SIGTERM (or what the user sent) has gone out; SIGKILL follows after `grace`.
  void kill_after(std::chrono::milliseconds grace);
  void kill_ranks();
  void end_ranks();
  /// Ends or restarts the job as soon as the outcome is known and the last rank has ended.
  void advance();
  void report(const RankEnd& end);
  void say(const std::string& text);
  bool has_ranks() const { return ranks_ && ranks_->running() > 0; }

  const LaunchPlan& plan_;
  std::string path_;
  const Guard& guard_;
  SignalState signals_at_start_;
  rlimit open_files_at_start_;
  CpuShare cpus_;
  asio::io_context loop_;
  asio::signal_set signals_;
  asio::steady_timer kill_timer_;
  Consoles consoles_;
  StandardInput input_;
  JobStore store_;

  int attempt_ = 0;
  World world_;
  std::unique_ptr<RankEnvironment> environment_;
  std::unique_ptr<RankGroup> ranks_;
  Losses losses_;
  std::optional<RankEnd> first_failure_;
  std::optional<AttemptOutcome> outcome_;
  int stop_signal_ = 0;  // the signal by which the user asked the job to end; 0: none
  int signals_seen_ = 0;
  bool killed_ = false;
  bool starts_over_ = false;
  std::optional<int> exit_code_;

  std::unique_ptr<NodeAgreement> agreement_;  // last: its threads post to the loop
};

}  // namespace cohort::tool
