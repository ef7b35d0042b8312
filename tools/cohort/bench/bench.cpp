// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/launch.h>
#include <cohort/version.h>

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "bench/comparison.h"
#include "bench/flags.h"
#include "bench/output.h"
#include "bench/ranks.h"
#include "commands.h"
#include "common/usage.h"
#include "common/write_file.h"
#include "core/cpus.h"
#include "measure/sizes.h"

namespace cohort::bench {

using namespace measure;

namespace {

/// What is being measured now, where somebody watches.
class Progress {
 public:
  explicit Progress(bool is_shown) : is_shown_(is_shown && ::isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& text) const {
    if (is_shown_) fmt::print(stderr, "\r\x1b[K{}", text);
  }
  void clear() const { show(""); }

 private:
  bool is_shown_;
};

/// One run of the command: who takes part, and what comes out.
class Bench {
 public:
  explicit Bench(const BenchFlags& flags)
      : flags_(flags), plan_(make_bench_plan(flags)), launch_(find_launch(Env::read())) {
    cores_ = usable_cpus().count();
    if (launch_) {
      if (flags.ranks != 0 && flags.ranks != launch_->size) {
        throw ValueError(fmt::format("--ranks {}: the launcher ({}) started {}", flags.ranks,
                                     to_string(launch_->launcher), launch_->size));
      }
      ranks_ = launch_->size;
      reports_ = launch_->rank == 0;
    } else {
      ranks_ = flags.ranks != 0 ? flags.ranks : std::max(cores_, 2);
    }
    if (plan_.command.root >= ranks_) {
      throw ValueError(fmt::format("--root {}: there are {} ranks", plan_.command.root, ranks_));
    }
    if (reports_) {
      for (const auto& path : {flags.json, flags.plot}) {
        if (!path.empty()) tool::expect_writable(path);
      }
    }
  }

  int run() {
    // First: it forks, and groups have threads.
    std::optional<tool::Guard> guard;
    if (!launch_) guard.emplace();
    gather_contestants(guard);
    print(flags_.csv ? csv_header() : introduction());
    bool has_failed = false;
    for (int cycle = 0; cycle < flags_.run_cycles; ++cycle) has_failed |= !run_cycle();
    if (reports_ && !flags_.json.empty()) tool::write_file(flags_.json, to_json(all_, cores_));
    contestants_.clear();
    return has_failed ? 1 : 0;
  }

 private:
  void gather_contestants(const std::optional<tool::Guard>& guard) {
    if (launch_) {
      if (!flags_.peers.empty()) {
        throw ValueError("--peers cannot be used under a launcher: `cohort bench --ranks N` starts the peers itself");
      }
      contestants_ = join_groups(flags_, plan_, launch_->local_rank.value_or(launch_->rank));
      return;
    }
    const auto peers = read_peers(flags_.peers, plan_.timeout);
    contestants_ = start_groups(flags_, plan_, ranks_, *guard);
    for (const auto& [name, start] : peers) {
      contestants_.push_back(std::make_unique<DrivenContestant>(name, start, *guard));
    }
    // Now, so that no driver's start disturbs the first measurement of another.
    for (const auto& contestant : contestants_) {
      progress_.show(fmt::format("starting {}", contestant->name().label()));
      dynamic_cast<DrivenContestant&>(*contestant).is_ready();
    }
  }

  std::string introduction() const {
    const auto who = fmt::format("# cohort bench {}: {} ranks{}, {} cores", version().text, ranks_,
                                 launch_ ? fmt::format(" of {}", to_string(launch_->launcher)) : "", cores_);
    if (flags_.back_to_back) {
      return fmt::format("{}, operations back to back for {} ms in each of {} rounds\n", who,
                         plan_.command.limit.count() / 1000, flags_.rounds);
    }
    return fmt::format("{}, {} {} of {} after {} to warm up{}\n", who, flags_.iters,
                       flags_.rounds == 1 ? "samples" : fmt::format("samples in each of {} rounds", flags_.rounds),
                       flags_.agg_iters > 0 ? fmt::format("{} operations", flags_.agg_iters) : "one or more operations",
                       flags_.warmup_iters,
                       flags_.limit_ms > 0 ? fmt::format(", fewer when they take over {:g} ms", flags_.limit_ms) : "");
  }

  bool run_cycle() {
    std::vector<Comparison> comparisons;
    for (const auto operation : plan_.operations) {
      if (!flags_.csv) print(fmt::format("#\n# {}\n{}", to_string(operation), table_header(shows_backend())));
      for (const auto bytes : has_data(operation) ? plan_.sizes : std::vector<std::size_t>{0}) {
        auto command = plan_.command;
        command.operation = operation;
        command.bytes = bytes;
        comparisons.push_back(compare(contestants_, command, ranks_, options()));
        progress_.clear();
        print(flags_.csv ? csv_rows(comparisons.back()) : table_rows(comparisons.back(), shows_backend()));
      }
      for (const auto& contestant : contestants_) contestant->release_memory();
    }
    if (!flags_.csv) print(table_footer(comparisons));
    if (reports_ && !flags_.plot.empty()) tool::write_file(flags_.plot, to_svg(comparisons));
    const bool is_fine = count_wrong(comparisons) == 0 && has_figures_of_ours(comparisons);
    all_.insert(all_.end(), comparisons.begin(), comparisons.end());
    return is_fine;
  }

  ComparisonOptions options() const {
    return {.rounds = flags_.rounds,
            .check = flags_.check,
            .placements = plan_.placements,
            .drop_peers_beyond = flags_.drop_peers,
            .on_progress = [this](const std::string& what) { progress_.show(what); }};
  }

  bool has_figures_of_ours(const std::vector<Comparison>& comparisons) const {
    const bool has_ours = flags_.backends.front() != nobody;
    return std::any_of(comparisons.begin(), comparisons.end(), [&](const Comparison& comparison) {
      return std::any_of(comparison.rows.begin(), comparison.rows.end(), [&](const ComparisonRow& row) {
        return row.contestant.is_peer != has_ours && (row.in_place.has_figures() || row.out_of_place.has_figures());
      });
    });
  }

  bool shows_backend() const { return contestants_.size() > 1; }
  void print(const std::string& text) const {
    if (!reports_) return;
    fmt::print("{}", text);
    (void)std::fflush(stdout);
  }

  const BenchFlags& flags_;
  BenchPlan plan_;
  std::optional<Launch> launch_;
  int cores_ = 1;
  int ranks_ = 1;
  bool reports_ = true;
  Progress progress_{true};
  std::vector<std::unique_ptr<Contestant>> contestants_;
  std::vector<Comparison> all_;
};

int run_bench(const BenchFlags& flags) {
  try {
    if (flags.drive) return drive_group(flags, make_bench_plan(flags));
    return Bench(flags).run();
  } catch (const ValueError& e) {
    fmt::print(stderr, "cohort bench: {}\n", e.what());
    return tool::usage_exit_code;
  }
}

}  // namespace

}  // namespace cohort::bench

namespace cohort::tool {

void add_bench_command(CLI::App& app) {
  auto* const command = app.add_subcommand("bench", "Measure collectives: nccl-tests' flags and table");
  const auto flags = bench::add_bench_flags(*command);
  command->callback([flags] {
    if (const int code = bench::run_bench(*flags); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace cohort::tool
