// SPDX-License-Identifier: BSD-3-Clause
#include "measure/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/write_file.h"
#include "measure/statistics.h"

namespace cohort::measure {

namespace {

std::string number(double value) {
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
}

/// The figure that the bar is for.
double judged(const Row& row) {
  return row.ratio ? *row.ratio : row.difference.value_or(row.ours);
}

bool is_met(const Row& row) {
  const double value = judged(row);
  return row.bar->kind == Bar::Kind::at_most ? value <= row.bar->value : value >= row.bar->value;
}

/// Whether the bar was met.
std::string result_text(const Row& row) {
  if (!row.bar) return "";
  if (is_met(row)) return "met";
  const auto cores = std::thread::hardware_concurrency();
  if (cores < row.bar->cores) return fmt::format("not judged: {} cores, not {}", cores, row.bar->cores);
  return row.ratio ? fmt::format("MISSED: {:.2f}x", judged(row))
                   : fmt::format("MISSED: {:.1f} {}", judged(row), row.unit);
}

std::string bar_text(const Row& row) {
  if (!row.bar) return "";
  const auto* const kind = row.bar->kind == Bar::Kind::at_most ? "<=" : ">=";
  return row.ratio ? fmt::format("{} {:g}x", kind, row.bar->value)
                   : fmt::format("{} {:g} {}", kind, row.bar->value, row.unit);
}

std::string comparison_text(const Row& row) {
  if (row.ratio) return fmt::format("{:.2f}x", *row.ratio);
  return row.difference ? fmt::format("{:+.2f} {}", *row.difference, row.unit) : "-";
}

}  // namespace

Row compared(std::string what, std::string unit, const std::vector<double>& ours, const std::vector<double>& peer,
             std::string peer_name, std::optional<Bar> bar) {
  const bool is_speedup = bar && bar->kind == Bar::Kind::at_least;
  return {.what = std::move(what),
          .unit = std::move(unit),
          .ours = median(ours),
          .peer = median(peer),
          .peer_name = std::move(peer_name),
          .ratio = is_speedup ? median_ratio(peer, ours) : median_ratio(ours, peer),
          .bar = bar};
}

void Report::print(const std::string& title) {
  fmt::print("\n{}\n", title);
  std::size_t width = 34;
  for (auto i = printed_; i < rows_.size(); ++i) width = std::max(width, rows_[i].what.size());
  fmt::print("  {:<{}} {:>16} {:>34} {:>10} {:>12}  {}\n", "", width, "ours", "peer", "ratio", "bar", "result");
  for (; printed_ < rows_.size(); ++printed_) {
    const auto& row = rows_[printed_];
    fmt::print("  {:<{}} {:>16} {:>34} {:>10} {:>12}  {}{}\n", row.what, width, number(row.ours) + " " + row.unit,
               row.peer ? fmt::format("{}: {} {}", row.peer_name, number(*row.peer), row.unit) : "-",
               comparison_text(row), bar_text(row), result_text(row), row.note.empty() ? "" : " (" + row.note + ")");
  }
  static_cast<void>(std::fflush(stdout));
}

void Report::write_json(const std::string& file) const {
  auto rows = nlohmann::json::array();
  for (const auto& row : rows_) {
    nlohmann::json item{{"what", row.what}, {"unit", row.unit}, {"ours", row.ours}};
    if (row.peer) item["peer"] = {{"name", row.peer_name}, {"value", *row.peer}};
    if (row.ratio) item["ratio"] = *row.ratio;
    if (row.difference) item["difference"] = *row.difference;
    if (row.bar) {
      item["bar"] = {{row.bar->kind == Bar::Kind::at_most ? "at_most" : "at_least", row.bar->value}};
      item["result"] = result_text(row);
    }
    if (!row.note.empty()) item["note"] = row.note;
    rows.push_back(std::move(item));
  }
  const nlohmann::json document{{"cores", std::thread::hardware_concurrency()}, {"rows", std::move(rows)}};
  tool::write_file(file, document.dump(2) + "\n");
}

}  // namespace cohort::measure
