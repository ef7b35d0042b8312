// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "bench/output.h"
#include "common/line_chart.h"
#include "measure/sizes.h"

namespace cohort::bench {

using namespace measure;

namespace {

using tool::Chart;
using tool::ChartLine;

using Value = std::function<double(const Comparison&, double microseconds)>;

/// One line for each contestant, at the same index whether or not it has points: that is its style.
std::vector<ChartLine> lines_of(const std::vector<const Comparison*>& comparisons, const Value& value) {
  std::vector<ChartLine> lines;
  for (const auto& row : comparisons.front()->rows)
    lines.push_back({row.contestant.label(), row.contestant.is_peer, {}});
  for (const auto* const comparison : comparisons) {
    for (std::size_t i = 0; i < comparison->rows.size(); ++i) {
      const auto& row = comparison->rows[i];
      const auto& outcome = row.in_place.has_figures() ? row.in_place : row.out_of_place;
      if (!outcome.has_figures()) continue;
      const double y = value(*comparison, summarize(outcome.rounds).p50);
      // A barrier has no size; its point stands at 1 byte.
      if (y > 0) lines[i].points.push_back({std::max(static_cast<double>(comparison->bytes), 1.0), y});
    }
  }
  return lines;
}

tool::ChartRow charts_of(const std::vector<const Comparison*>& comparisons) {
  std::vector<tool::ChartTick> sizes;
  sizes.reserve(comparisons.size());
  for (const auto* const comparison : comparisons) {
    sizes.push_back({static_cast<double>(comparison->bytes), format_size(comparison->bytes)});
  }
  const auto& first = *comparisons.front();
  const auto name = fmt::format("{}, {} ranks", to_string(first.command.operation), first.ranks);
  auto times = lines_of(comparisons, [](const Comparison&, double us) { return us; });
  auto rates = lines_of(comparisons, [](const Comparison& c, double us) { return bandwidth(c, us).bus; });
  return {Chart{.title = name + ": time, us (median)", .lines = std::move(times), .ticks = sizes},
          Chart{.title = name + ": bus bandwidth, GB/s", .lines = std::move(rates), .ticks = sizes}};
}

}  // namespace

std::string to_svg(const std::vector<Comparison>& comparisons) {
  std::vector<tool::ChartRow> rows;
  for (const auto operation : all_operations()) {
    std::vector<const Comparison*> same;
    for (const auto& comparison : comparisons) {
      if (comparison.command.operation == operation) same.push_back(&comparison);
    }
    if (!same.empty()) rows.push_back(charts_of(same));
  }
  return tool::draw_charts(rows);
}

}  // namespace cohort::bench
