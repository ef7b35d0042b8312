// SPDX-License-Identifier: BSD-3-Clause
#include "report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

namespace cohort::bench {

namespace {

double judged(const Row& row) {
  return row.ratio.value_or(row.ours);
}

bool is_met(const Row& row) {
  const double value = judged(row);
  return row.bar->kind == Bar::Kind::at_most ? value <= row.bar->value : value >= row.bar->value;
}

std::string verdict(const Row& row) {
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

std::string number(double value) {
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("the median of nothing");
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Rounds::median_ratio() const {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(ours.size(), peer.size()); ++i) ratios.push_back(ours[i] / peer[i]);
  return median(std::move(ratios));
}

void Report::add(Row row) {
  rows_.push_back(std::move(row));
}

void Report::print(const std::string& title) {
  fmt::print("\n{}\n", title);
  fmt::print("  {:<34} {:>16} {:>34} {:>7} {:>12}  {}\n", "", "ours", "peer", "ratio", "bar", "verdict");
  for (; printed_ < rows_.size(); ++printed_) {
    const auto& row = rows_[printed_];
    fmt::print("  {:<34} {:>16} {:>34} {:>7} {:>12}  {}{}\n", row.what, number(row.ours) + " " + row.unit,
               row.peer ? fmt::format("{}: {} {}", row.peer_name, number(*row.peer), row.unit) : "-",
               row.ratio ? fmt::format("{:.2f}x", *row.ratio) : "-", bar_text(row), verdict(row),
               row.note.empty() ? "" : " (" + row.note + ")");
  }
  std::fflush(stdout);
}

void Report::write_json(const std::string& file) const {
  auto rows = nlohmann::json::array();
  for (const auto& row : rows_) {
    nlohmann::json item{{"what", row.what}, {"unit", row.unit}, {"ours", row.ours}};
    if (row.peer) item["peer"] = {{"name", row.peer_name}, {"value", *row.peer}};
    if (row.ratio) item["ratio"] = *row.ratio;
    if (row.bar) {
      item["bar"] = {{row.bar->kind == Bar::Kind::at_most ? "at_most" : "at_least", row.bar->value}};
      item["verdict"] = verdict(row);
    }
    if (!row.note.empty()) item["note"] = row.note;
    rows.push_back(std::move(item));
  }
  const nlohmann::json document{{"cores", std::thread::hardware_concurrency()}, {"rows", std::move(rows)}};
  std::ofstream out(file);
  out << document.dump(2) << '\n';
  if (!out.flush()) throw std::runtime_error(fmt::format("cannot write {}", file));
}

}  // namespace cohort::bench
