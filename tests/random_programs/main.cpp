// SPDX-License-Identifier: BSD-3-Clause
//
// Runs random programs on a backend and compares every result with a serial reference. A program that fails is cut to a
// few steps and printed with the command that runs it again.
//
//   random_programs --backend gloo --programs 1000 --seed 5000
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "random_programs/generate.h"
#include "random_programs/run.h"
#include "random_programs/shrink.h"

namespace cohort::random_programs {

namespace {

constexpr int skipped = 77;  // ctest's SKIP_RETURN_CODE

struct Settings {
  Where where{};
  std::uint64_t seed = 1;
  std::uint64_t programs = 100;
  std::vector<std::uint64_t> seeds{};
  int size = 0;
  std::vector<int> steps{};
  std::optional<std::size_t> elements{};
  double timeout = 20;
  double shrink_seconds = 60;
  int failures = 3;
  bool only_prints = false;
  bool is_launched_rank = false;
  std::string tampered{};
};

Program program_of(const Settings& settings, std::uint64_t seed) {
  const auto program = generate(seed, settings.where.backend);
  auto cut = whole(program);
  if (settings.size > 0) cut.size = settings.size;
  if (!settings.steps.empty()) cut.steps = settings.steps;
  cut.elements = settings.elements;
  return with_cut(program, cut);
}

/// The options that say how to run, without those that say what.
std::vector<std::string> options_of(const Settings& settings) {
  std::vector<std::string> options{"--backend", settings.where.backend, "--timeout",
                                   fmt::format("{}", settings.timeout)};
  if (!settings.tampered.empty()) options.insert(options.end(), {"--tamper", settings.tampered});
  return options;
}
std::vector<std::string> options_of(const Settings& settings, std::uint64_t seed, const Cut& cut) {
  auto options = options_of(settings);
  options.insert(options.end(), {"--seed", std::to_string(seed), "--programs", "1", "--size", std::to_string(cut.size),
                                 "--steps", fmt::format("{}", fmt::join(cut.steps, ","))});
  if (cut.elements) options.insert(options.end(), {"--elements", std::to_string(*cut.elements)});
  return options;
}

std::vector<Report> run_one(const Settings& settings, std::uint64_t seed, const Cut& cut) {
  const auto program = with_cut(generate(seed, settings.where.backend), cut);
  if (program.steps.empty()) return {};
  if (settings.where.launcher.empty()) return run(program, settings.where);
  auto options = options_of(settings, seed, cut);
  options.emplace_back("--as-launched-rank");
  const auto launched = launch(settings.where.launcher, cut.size, options, settings.where.timeout);
  std::vector<Report> reports;
  for (const auto& [of, report] : launched.reports) reports.push_back(report);
  if (reports.empty() && launched.status != 0) {
    reports.push_back({-1, {launched.status < 0 ? "hang" : "crash", 0, launched.says}});
  }
  return reports;
}

/// Cuts a failing program and prints what is left. A failure that is a missed deadline takes that long in every run, so
/// the timeout is shorter here.
void explain(Settings settings, std::uint64_t seed, const std::vector<Report>& reports) {
  settings.timeout = std::min(settings.timeout, 5.0);
  settings.where.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(settings.timeout * 1000));
  const auto program = program_of(settings, seed);
  std::cout << "FAILED: seed " << seed << " on " << settings.where.backend << "\n";
  for (const auto& report : reports) std::cout << "  " << to_string(report) << "\n";
  std::cout << "cutting " << program.steps.size() << " steps ..." << std::endl;
  // A failure that depends on timing does not show every time.
  const auto fails = [&](const Cut& cut) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      const auto again = run_one(settings, seed, cut);
      if (!again.empty() && again.front().failure.kind == reports.front().failure.kind) return true;
    }
    return false;
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(
                                                            std::chrono::duration<double>(settings.shrink_seconds));
  auto cut = whole(program);
  cut.elements = settings.elements;
  if (fails(cut)) {
    cut = shrink(program, fails, until);
  } else {
    std::cout << "it did not fail again in 3 runs, so it is printed whole\n";
  }
  std::cout << "\nprogram of seed " << seed << " on " << settings.where.backend << ": "
            << describe(with_cut(program, cut));
  for (const auto& report : run_one(settings, seed, cut)) std::cout << "  " << to_string(report) << "\n";
  std::cout << "run it again:\n  " << std::filesystem::read_symlink("/proc/self/exe").string() << " "
            << fmt::format("{}", fmt::join(options_of(settings, seed, cut), " "));
  if (!settings.where.launcher.empty()) std::cout << " --launcher '" << settings.where.launcher << "'";
  std::cout << "\n" << std::endl;
}

/// One job for all programs of a size, because starting one takes seconds.
int run_launched(const Settings& settings) {
  std::map<int, std::vector<std::uint64_t>> seeds;
  for (std::uint64_t i = 0; i < settings.programs; ++i) {
    const auto seed = settings.seed + i;
    seeds[program_of(settings, seed).size].push_back(seed);
  }
  int failed = 0;
  for (const auto& [size, of_size] : seeds) {
    auto options = options_of(settings);
    options.insert(options.end(), {"--as-launched-rank", "--seeds", fmt::format("{}", fmt::join(of_size, ","))});
    const auto limit = settings.where.timeout + std::chrono::seconds(2) * of_size.size();
    const auto launched = launch(settings.where.launcher, size, options, limit);
    std::map<std::uint64_t, std::vector<Report>> reports;
    for (const auto& [seed, report] : launched.reports) reports[seed].push_back(report);
    for (const auto& [seed, of_seed] : reports) {
      explain(settings, seed, of_seed);
      if (++failed >= settings.failures) return failed;
    }
    if (launched.status != 0 && reports.empty()) {
      std::cout << "the launcher ended with status " << launched.status << ":\n" << launched.says << "\n";
      ++failed;
    }
  }
  return failed;
}

int run_all(const Settings& settings) {
  int failed = 0;
  for (std::uint64_t i = 0; i < settings.programs; ++i) {
    const auto seed = settings.seed + i;
    const auto program = program_of(settings, seed);
    const auto reports = run(program, settings.where);
    if (reports.empty()) continue;
    explain(settings, seed, reports);
    if (++failed >= settings.failures) return failed;
  }
  return failed;
}

std::optional<Kind> kind_of(const std::string& name) {
  for (int i = 0; i < kinds; ++i) {
    if (to_string(static_cast<Kind>(i)) == name) return static_cast<Kind>(i);
  }
  return {};
}

int main(int argc, const char* const* argv) {
  Settings settings;
  CLI::App app(
      "Runs random programs on a backend and compares every result, bit by bit, with a serial reference.\n"
      "A program that fails is cut to a few steps and printed with the command that runs it again.");
  app.add_option("--backend", settings.where.backend, "thread, shm, gloo, hybrid or mpi")->capture_default_str();
  app.add_option("--programs", settings.programs, "how many")->capture_default_str();
  app.add_option("--seed", settings.seed, "of the first program; the others follow")->capture_default_str();
  app.add_option("--size", settings.size, "ranks, instead of the program's own number")->capture_default_str();
  app.add_option("--steps", settings.steps, "only the steps with these numbers")->delimiter(',');
  app.add_option("--elements", settings.elements, "no piece has more elements than this");
  app.add_option("--timeout", settings.timeout, "of an operation, in seconds")->capture_default_str();
  app.add_option("--shrink-seconds", settings.shrink_seconds, "how long a failure may be cut")->capture_default_str();
  app.add_option("--failures", settings.failures, "stop after this many")->capture_default_str();
  app.add_option("--launcher", settings.where.launcher,
                 "for mpi, and for hybrid over mpi: the command that starts ranks, as in 'mpirun --oversubscribe'");
  app.add_flag("--print", settings.only_prints, "print the programs and run nothing");
  app.add_option("--tamper", settings.tampered,
                 "change results of these operations on the last rank, to see that it is found");
  app.add_option("--seeds", settings.seeds)->delimiter(',')->group("");
  app.add_flag("--as-launched-rank", settings.is_launched_rank)->group("");
  CLI11_PARSE(app, argc, argv);
  settings.where.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(settings.timeout * 1000));
  if (!settings.tampered.empty()) {
    settings.where.tampered = kind_of(settings.tampered);
    if (!settings.where.tampered) {
      std::cerr << "--tamper: there is no operation \"" << settings.tampered << "\"\n";
      return 2;
    }
  }

  if (settings.is_launched_rank) {
    if (settings.seeds.empty()) settings.seeds = {settings.seed};
    std::vector<Program> programs;
    for (const auto seed : settings.seeds) programs.push_back(program_of(settings, seed));
    return run_as_launched_rank(programs, settings.where);
  }
  if (settings.only_prints) {
    for (std::uint64_t i = 0; i < settings.programs; ++i) {
      std::cout << "seed " << settings.seed + i << ": " << describe(program_of(settings, settings.seed + i)) << "\n";
    }
    return 0;
  }
  if (settings.where.backend == "mpi" && settings.where.launcher.empty()) {
    std::cerr << "mpi needs --launcher, as in --launcher 'mpirun --oversubscribe'\n";
    return 2;
  }
  if (!settings.where.launcher.empty() &&
      std::system((settings.where.launcher + " -n 1 true >/dev/null 2>&1").c_str()) != 0) {
    std::cout << "skipped: " << settings.where.launcher << " starts no programs here\n";
    return skipped;
  }

  const auto begin = std::chrono::steady_clock::now();
  const int failed = settings.where.launcher.empty() ? run_all(settings) : run_launched(settings);
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::cout << fmt::format("{} programs on {}, seeds {} to {}: {} failed{}, {:.1f} s\n", settings.programs,
                           settings.where.backend, settings.seed, settings.seed + settings.programs - 1, failed,
                           failed >= settings.failures ? ", and the rest was not run" : "", took);
  return failed == 0 ? 0 : 1;
}

}  // namespace

}  // namespace cohort::random_programs

int main(int argc, char** argv) {
  try {
    return cohort::random_programs::main(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 2;
  }
}
