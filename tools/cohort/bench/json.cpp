// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "bench/output.h"

namespace cohort::bench {

using namespace measure;

namespace {

using nlohmann::json;

json to_value(const Comparison& comparison, const ComparisonRow& row, const Outcome& outcome, const char* placement) {
  const auto& c = comparison.command;
  json value{{"collective", to_string(c.operation)},
             {"ranks", comparison.ranks},
             {"size", comparison.bytes},
             {"count", comparison.count},
             {"type", to_string(c.dtype)},
             {"backend", row.contestant.backend},
             {"memory", row.contestant.memory},
             {"peer", row.contestant.is_peer},
             {"placement", placement}};
  if (reduces(c.operation)) value["redop"] = to_string(c.reduction);
  if (has_root(c.operation)) value["root"] = c.root;
  if (outcome.is_checked) value["wrong"] = outcome.wrong;
  if (!outcome.failure.empty()) value["failure"] = outcome.failure;
  if (!outcome.refusal.empty()) value["refusal"] = outcome.refusal;
  if (outcome.has_figures()) {
    const auto summary = summarize(outcome.rounds);
    const auto rate = bandwidth(comparison, summary.mean);
    value["time_us"] = summary.mean;
    value["min_us"] = summary.min;
    value["p50_us"] = summary.p50;
    value["p99_us"] = summary.p99;
    value["samples"] = summary.samples;
    value["batch"] = outcome.batch;
    value["rounds_us"] = outcome.rounds.medians();
    if (has_data(c.operation)) {
      value["algbw_GBps"] = rate.algorithm;
      value["busbw_GBps"] = rate.bus;
    }
  }
  return value;
}

std::vector<json> values_of(const Comparison& comparison) {
  std::vector<json> values;
  for (const auto& row : comparison.rows) {
    const auto operation = comparison.command.operation;
    if (works_out_of_place(operation)) values.push_back(to_value(comparison, row, row.out_of_place, "out-of-place"));
    if (works_in_place(operation)) values.push_back(to_value(comparison, row, row.in_place, "in-place"));
  }
  return values;
}

struct Column {
  const char* name;
  const char* otherwise = "";  ///< where an outcome has no such value
};
constexpr std::array csv_columns{Column{"collective"},
                                 Column{"ranks"},
                                 Column{"size"},
                                 Column{"count"},
                                 Column{"type"},
                                 Column{"redop", "none"},
                                 Column{"root", "-1"},
                                 Column{"backend"},
                                 Column{"memory"},
                                 Column{"placement"},
                                 Column{"time_us"},
                                 Column{"min_us"},
                                 Column{"p50_us"},
                                 Column{"p99_us"},
                                 Column{"algbw_GBps", "0.0000"},
                                 Column{"busbw_GBps", "0.0000"},
                                 Column{"wrong", "N/A"},
                                 Column{"samples"}};

std::string csv_text(const json& value, const Column& column) {
  const auto found = value.find(column.name);
  if (found == value.end()) return column.otherwise;
  if (found->is_number_float()) return fmt::format("{:.4f}", found->get<double>());
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace

std::string csv_header() {
  std::vector<const char*> names;
  names.reserve(csv_columns.size());
  for (const auto& column : csv_columns) names.push_back(column.name);
  return fmt::format("{}\n", fmt::join(names, ","));
}

std::string csv_rows(const Comparison& comparison) {
  std::string result;
  for (const auto& value : values_of(comparison)) {
    if (!value.contains("time_us")) continue;
    std::vector<std::string> texts;
    texts.reserve(csv_columns.size());
    for (const auto& column : csv_columns) texts.push_back(csv_text(value, column));
    result += fmt::format("{}\n", fmt::join(texts, ","));
  }
  return result;
}

std::string to_json(const std::vector<Comparison>& comparisons, int cores) {
  auto results = json::array();
  for (const auto& comparison : comparisons) {
    for (auto& value : values_of(comparison)) results.push_back(std::move(value));
  }
  const json document{{"cohort", version().text}, {"cores", cores}, {"results", std::move(results)}};
  // The error text of a peer need not be UTF-8.
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace cohort::bench
