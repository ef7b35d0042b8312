// SPDX-License-Identifier: BSD-3-Clause
#include "run/launcher.h"

#include <cohort/error.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <asio/post.hpp>
#include <csignal>

#include "common/free_port.h"
#include "common/host_name.h"
#include "common/terminal_text.h"
#include "core/file_descriptor.h"

namespace cohort::tool {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Between the user's first Ctrl-C or SIGTERM and SIGKILL: time to write a checkpoint.
constexpr seconds time_to_stop{10};
/// After SIGKILL only a process that hangs in the kernel is still alive.
constexpr seconds time_to_die{5};
/// For other hosts' launchers to read the outcome.
constexpr seconds time_to_leave{10};

bool asks_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM;
}

std::string describe(const RankEnd& end) {
  auto text = fmt::format("rank {} (pid {}) on host {} {}", end.rank, end.pid, host_name(), to_string(end.status));
  if (end.status.signal == SIGKILL) text += "; if nobody sent it, the system may have run out of memory (see dmesg)";
  return text;
}

}  // namespace

Launcher::Launcher(const LaunchPlan& plan, std::string path, const Guard& guard)
    : plan_(plan),
      path_(std::move(path)),
      guard_(guard),
      signals_at_start_(SignalState::now()),
      open_files_at_start_(raise_open_files()),
      cpus_(share_cpus(usable_cpus(), plan.local_size, plan.may_bind)),
      signals_(loop_),
      kill_timer_(loop_),
      consoles_(loop_),
      input_(loop_),
      store_(plan) {
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
  static_cast<void>(
      std::signal(SIGCHLD, SIG_DFL));  // ends are read with waitid, which an inherited SIG_IGN would defeat
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    // Signals that nohup or a shell's & has ignored stay ignored.
    if (!signals_at_start_.ignored[static_cast<std::size_t>(signal)]) signals_.add(signal);
  }
  if (!plan.is_one_host()) {
    agreement_ = std::make_unique<NodeAgreement>(
        loop_, plan_, store_.client(),
        NodeAgreement::Events{.on_start = [this](const World& world) { start_ranks(world); },
                              .on_outcome = [this](const AttemptOutcome& outcome) { on_outcome(outcome); },
                              .on_delay = [this](const std::string& text) { say(text); }});
  }
}

int Launcher::run() {
  await_signal();
  begin_attempt();
  while (!exit_code_) loop_.run_one();
  const int exit_code = *exit_code_;
  ranks_.reset();
  agreement_.reset();
  if (!plan_.is_one_host()) store_.wait_until_left(Deadline::after(time_to_leave));
  // The reader of our output may be slow; a user who does not want to wait for it sends another signal.
  const int signals_before = signals_seen_;
  while (!consoles_.are_idle() && signals_seen_ == signals_before) loop_.run_one_for(milliseconds(100));
  return exit_code;
}

void Launcher::begin_attempt() {
  first_failure_.reset();
  outcome_.reset();
  killed_ = false;
  starts_over_ = false;
  if (agreement_) {
    agreement_->join(attempt_);
    return;
  }
  World world{.size = plan_.local_size, .first_rank = 0, .master_port = plan_.master_port.value_or(0)};
  if (world.master_port == 0) world.master_port = free_port();
  start_ranks(world);
}

void Launcher::start_ranks(const World& world) {
  if (exit_code_) return;
  world_ = world;
  environment_ = std::make_unique<RankEnvironment>(RankEnvironment{.plan = plan_,
                                                                   .world = world_,
                                                                   .attempt = attempt_,
                                                                   .threads = cpus_.threads,
                                                                   .run_id = store_.run_id(),
                                                                   .store = store_.address(),
                                                                   .secret_file = store_.secret_file()});
  ranks_ = std::make_unique<RankGroup>(setup_of(world_.first_rank == 0 ? input_.open_for_rank() : STDIN_FILENO));
  input_.started();
}

RankGroup::Setup Launcher::setup_of(int standard_input) {
  return {.loop = loop_,
          .plan = plan_,
          .guard = guard_,
          .consoles = consoles_,
          .cpus = cpus_,
          .environment = *environment_,
          .path = path_,
          .signals = signals_at_start_,
          .open_files = open_files_at_start_,
          .standard_input = standard_input,
          .on_end = [this](const RankEnd& end) { rank_ended(end); }};
}

bool Launcher::replace(const RankEnd& end) {
  // Alone, a replacement would wait for a group that nobody else is in.
  const bool has_others = has_ranks() || !plan_.is_one_host();
  if (!has_others || restarts_used() >= plan_.max_restarts) return false;
  const auto number = losses_.next_replacement(end.rank);
  say(fmt::format("starting a replacement for rank {} (replacement {} of {})", end.rank, restarts_used(),
                  plan_.max_restarts));
  try {
    // What was typed for rank 0 went to the process that had this rank first.
    FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ranks_->replace(setup_of(nothing.get()), end.rank - world_.first_rank, number);
    return true;
  } catch (const Error& e) {
    say(fmt::format("no replacement for rank {}: {}", end.rank, e.what()));
    return false;
  }
}

void Launcher::go_on_after(const RankEnd& end) {
  if (end.status.is_success()) return losses_.succeeded();
  report(end);
  if (!replace(end)) losses_.lost(end);
}

bool Launcher::must_start_over(const RankEnd& end) const {
  return plan_.keep_going && plan_.is_one_host() && stop_signal_ == 0 && !outcome_ && !first_failure_ &&
         !end.status.is_success() && restarts_used() < plan_.max_restarts &&
         store_.has_unfinished_group(attempt_, world_.size);
}

void Launcher::rank_ended(const RankEnd& end) {
  starts_over_ = starts_over_ || must_start_over(end);
  if (plan_.keep_going && stop_signal_ == 0 && !outcome_ && !starts_over_) {
    go_on_after(end);
  } else if (!end.status.is_success() && !first_failure_) {
    first_failure_ = end;
    if (stop_signal_ == 0 && !outcome_) {
      report(end);
      if (agreement_) agreement_->propose(attempt_, local_outcome());
      end_ranks();
    }
  }
  if (!has_ranks()) asio::post(loop_, [this] { all_ranks_ended(); });  // the group still runs the code that called us
}

AttemptOutcome Launcher::local_outcome() const {
  if (!first_failure_) return losses_.outcome();
  const auto& status = first_failure_->status;
  AttemptOutcome outcome{AttemptOutcome::Kind::failed, status.shell_code(), stop_signal_ != 0,
                         describe(*first_failure_)};
  if (stop_signal_ != 0 && (status.signal == stop_signal_ || (killed_ && status.signal == SIGKILL))) {
    outcome.exit_code = 128 + stop_signal_;
    outcome.text = fmt::format("stopped by {} on host {}", signal_name(stop_signal_), host_name());
  }
  return outcome;
}

void Launcher::all_ranks_ended() {
  const auto outcome = local_outcome();
  if (!agreement_) {
    if (!outcome_) outcome_ = outcome;
    if (stop_signal_ != 0 && first_failure_) say(outcome.text);
  } else if (outcome.kind == AttemptOutcome::Kind::done) {
    agreement_->finished(attempt_, outcome);
  } else if (!outcome_) {
    agreement_->propose(attempt_, outcome);
  }
  advance();
}

void Launcher::on_outcome(const AttemptOutcome& outcome) {
  if (outcome_ || exit_code_) return;
  outcome_ = outcome;
  if (outcome.kind != AttemptOutcome::Kind::done) {
    const bool is_reported = first_failure_ && stop_signal_ == 0 && outcome.text == describe(*first_failure_);
    if (!is_reported) say(outcome.text);
    if (has_ranks()) end_ranks();
  }
  advance();
}

void Launcher::advance() {
  if (!outcome_ || has_ranks() || exit_code_) return;
  kill_timer_.cancel();
  ranks_.reset();
  if (outcome_->kind == AttemptOutcome::Kind::done) {
    if (outcome_->exit_code != 0) say(outcome_->text);
    exit_code_ = outcome_->exit_code;
    return;
  }
  const bool may_restart = !plan_.keep_going || starts_over_;
  if (outcome_->is_final || stop_signal_ != 0 || !may_restart || restarts_used() >= plan_.max_restarts) {
    if (attempt_ > 0) say(fmt::format("giving up after {} restart{}", attempt_, attempt_ == 1 ? "" : "s"));
    exit_code_ = outcome_->exit_code;
    return;
  }
  ++attempt_;
  say(fmt::format("{}restarting all ranks (restart {} of {})",
                  starts_over_ ? "a rank was lost while the ranks made a group: " : "", restarts_used(),
                  plan_.max_restarts));
  begin_attempt();
}

void Launcher::await_signal() {
  signals_.async_wait([this](asio::error_code error, int signal) {
    if (error) return;
    on_signal(signal);
    await_signal();
  });
}

void Launcher::suspend() {
  if (has_ranks()) ranks_->signal_all(SIGTSTP);
  // With the default action, so that the shell sees a stopped job. Where there is no shell to continue it, the system
  // ignores the signal, and the job goes on at once.
  signals_.remove(SIGTSTP);
  // The SIGCONT that ends this stop is not passed on as well: the ranks would get it twice.
  const bool hears_of_continue = !signals_at_start_.ignored[SIGCONT];
  if (hears_of_continue) signals_.remove(SIGCONT);
  static_cast<void>(::raise(SIGTSTP));
  signals_.add(SIGTSTP);
  if (hears_of_continue) signals_.add(SIGCONT);
  if (has_ranks()) ranks_->signal_all(SIGCONT);
}

void Launcher::on_signal(int signal) {
  if (signal == SIGTSTP) return suspend();
  if (signal != SIGCONT) ++signals_seen_;
  const bool is_passed_on_only = signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGCONT;
  if (!has_ranks()) {
    if (!is_passed_on_only && !exit_code_) exit_code_ = 128 + signal;
    return;
  }
  const bool is_second = asks_to_end(signal) && asks_to_end(stop_signal_);
  if (is_second) {
    kill_ranks();
    return;
  }
  if (!is_passed_on_only) stop_signal_ = signal;
  ranks_->signal_all(signal);
  if (asks_to_end(signal)) kill_after(time_to_stop);
}

void Launcher::end_ranks() {
  if (!has_ranks()) return;
  ranks_->signal_all(SIGTERM);
  ranks_->signal_all(SIGCONT);  // one that is stopped could not act on it
  kill_after(plan_.grace_period);
}

void Launcher::kill_after(milliseconds grace) {
  kill_timer_.expires_after(grace);
  kill_timer_.async_wait([this](asio::error_code error) {
    if (!error) kill_ranks();
  });
}

void Launcher::kill_ranks() {
  if (!has_ranks()) return;
  killed_ = true;
  ranks_->signal_all(SIGKILL);
  kill_timer_.expires_after(time_to_die);
  kill_timer_.async_wait([this](asio::error_code error) {
    if (error || !has_ranks()) return;
    say(fmt::format("{} ranks hang in the kernel and do not end even after SIGKILL; leaving them behind",
                    ranks_->running()));
    exit_code_ = first_failure_ ? first_failure_->status.shell_code() : 128 + SIGKILL;
  });
}

void Launcher::report(const RankEnd& end) {
  // `cohort run ... | head`: nobody reads the output any more, and that is no failure to report.
  if (end.status.signal == SIGPIPE && consoles_.output->is_closed()) return;
  say(describe(end));
  if (end.last_lines.empty()) return;
  std::string text = "  its last lines:\n";
  const bool is_on_terminal = consoles_.error->is_terminal();
  for (const auto& line : end.last_lines) {
    text += fmt::format("    {}\n", is_on_terminal ? for_terminal(line, Colours::keep) : line);
  }
  consoles_.error->write(text);
}

void Launcher::say(const std::string& text) {
  consoles_.error->write(fmt::format("cohort run: {}\n", text));
}

}  // namespace cohort::tool
