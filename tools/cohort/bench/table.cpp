// SPDX-License-Identifier: BSD-3-Clause
#include "bench/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace cohort::bench {

using namespace measure;

namespace {

/// Four to five figures, whatever the magnitude.
std::string figure(double value) {
  if (value >= 10000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  if (value >= 10) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

std::string reduction_name(const Command& command) {
  return std::string(reduces(command.operation) ? to_string(command.reduction) : "none");
}

int root_of(const Command& command) {
  return has_root(command.operation) ? command.root : -1;
}

std::string wrong_text(const Outcome& outcome) {
  return outcome.is_checked ? fmt::format("{}", outcome.wrong) : "N/A";
}

std::string timing(const Comparison& comparison, const Outcome& outcome) {
  if (!outcome.has_figures()) return fmt::format(" {:>9} {:>7} {:>7} {:>6}", "-", "-", "-", "-");
  const auto summary = summarize(outcome.rounds);
  const auto rate = bandwidth(comparison, summary.mean);
  return fmt::format(" {:>9} {:>7.2f} {:>7.2f} {:>6}", figure(summary.mean), rate.algorithm, rate.bus,
                     wrong_text(outcome));
}

std::string percentiles(const Outcome& outcome) {
  if (!outcome.has_figures()) return fmt::format(" {:>9} {:>9}", "-", "-");
  const auto summary = summarize(outcome.rounds);
  return fmt::format(" {:>9} {:>9}", figure(summary.p50), figure(summary.p99));
}

constexpr auto outcomes_of = [](const ComparisonRow& row) {
  return std::array<std::pair<const char*, const Outcome*>, 2>{std::pair{"out-of-place", &row.out_of_place},
                                                               std::pair{"in-place", &row.in_place}};
};

/// The reasons of a whole run, each said once.
class Failures {
 public:
  void add(const Comparison& comparison, const ComparisonRow& row) {
    for (const auto& [placement, outcome] : outcomes_of(row)) {
      // That a peer does not support something is not reported; its column stays empty.
      const auto& why = outcome->failure.empty() && !row.contestant.is_peer ? outcome->refusal : outcome->failure;
      if (why.empty()) continue;
      auto& where = found_[{row.contestant.label(), why}];
      const auto what = fmt::format("{} {}", to_string(comparison.command.operation), placement);
      if (std::find(where.begin(), where.end(), what) == where.end()) where.push_back(what);
    }
  }
  std::string text() const {
    std::string result;
    for (const auto& [who_why, where] : found_) {
      result += fmt::format("# {}, not measured ({}): {}\n", who_why.first, fmt::join(where, ", "), who_why.second);
    }
    return result;
  }

 private:
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> found_;
};

}  // namespace

Bandwidth bandwidth(const Comparison& comparison, double microseconds) {
  const double algorithm =
      microseconds > 0 ? static_cast<double>(comparison.bytes) / microseconds / 1e3 : 0;  // bytes per us are MB/s
  return {algorithm, algorithm * bus_factor(comparison.command.operation, comparison.ranks)};
}

std::string table_header(bool shows_backend) {
  using Texts = std::array<const char*, 11>;
  const auto line = [](const Texts& t, const char* backend) {
    const auto timings = fmt::format(" {:>9} {:>7} {:>7} {:>6}", t[5], t[6], t[7], t[8]);
    const auto tails = fmt::format(" {:>9} {:>9}", t[9], t[10]);
    return fmt::format("# {:>12} {:>12} {:>9} {:>6} {:>5}{}{}{}{}{}\n", t[0], t[1], t[2], t[3], t[4], timings, timings,
                       tails, tails, backend);
  };
  return fmt::format("#{:49}{:^33}{:^33}{:^20}{:^20}\n", "", "out-of-place", "in-place", "out-of-place", "in-place") +
         line({"size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "p50", "p99"},
              shows_backend ? "  backend" : "") +
         line({"(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)"},
              shows_backend ? "  " : "");
}

std::string table_rows(const Comparison& comparison, bool shows_backend) {
  const auto& c = comparison.command;
  std::string result;
  for (const auto& row : comparison.rows) {
    result += fmt::format("  {:>12} {:>12} {:>9} {:>6} {:>5}", comparison.bytes, comparison.count, to_string(c.dtype),
                          reduction_name(c), root_of(c));
    result += timing(comparison, row.out_of_place) + timing(comparison, row.in_place);
    result += percentiles(row.out_of_place) + percentiles(row.in_place);
    if (shows_backend) result += fmt::format("  {}", row.contestant.label());
    result += '\n';
  }
  return result;
}

std::uint64_t count_wrong(const std::vector<Comparison>& comparisons) {
  std::uint64_t wrong = 0;
  for (const auto& comparison : comparisons) {
    for (const auto& row : comparison.rows) wrong += row.out_of_place.wrong + row.in_place.wrong;
  }
  return wrong;
}

std::string table_footer(const std::vector<Comparison>& comparisons) {
  struct Average {
    double sum = 0;
    int number = 0;
  };
  std::vector<std::pair<std::string, Average>> averages;
  Failures failures;
  for (const auto& comparison : comparisons) {
    for (const auto& row : comparison.rows) {
      failures.add(comparison, row);
      const auto label = row.contestant.label();
      auto found = std::find_if(averages.begin(), averages.end(), [&](const auto& a) { return a.first == label; });
      if (found == averages.end()) found = averages.insert(averages.end(), {label, {}});
      for (const auto& [placement, outcome] : outcomes_of(row)) {
        if (!outcome->has_figures() || !has_data(comparison.command.operation)) continue;
        found->second.sum += bandwidth(comparison, summarize(outcome->rounds).mean).bus;
        ++found->second.number;
      }
    }
  }
  const auto wrong = count_wrong(comparisons);
  auto result = fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  for (const auto& [label, average] : averages) {
    result += fmt::format("# Avg bus bandwidth    : {:.3f}{}\n", average.number == 0 ? 0 : average.sum / average.number,
                          averages.size() > 1 ? fmt::format("   {}", label) : "");
  }
  return result + failures.text();
}

}  // namespace cohort::bench
