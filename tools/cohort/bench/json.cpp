// SPDX-License-Identifier: BSD-3-Clause
#include "bench/json.h"

#include <cohort/version.h>

#include <nlohmann/json.hpp>

#include "bench/table.h"

namespace cohort::bench {

namespace {

nlohmann::json to_value(const Comparison& comparison, const ComparisonRow& row, const Outcome& outcome,
                        const char* placement) {
  const auto& c = comparison.command;
  nlohmann::json value{{"collective", to_string(c.operation)},
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

}  // namespace

std::string to_json(const std::vector<Comparison>& comparisons, int cores) {
  auto results = nlohmann::json::array();
  for (const auto& comparison : comparisons) {
    for (const auto& row : comparison.rows) {
      if (works_out_of_place(comparison.command.operation)) {
        results.push_back(to_value(comparison, row, row.out_of_place, "out-of-place"));
      }
      if (works_in_place(comparison.command.operation)) {
        results.push_back(to_value(comparison, row, row.in_place, "in-place"));
      }
    }
  }
  const nlohmann::json document{{"cohort", version().text}, {"cores", cores}, {"results", std::move(results)}};
  // The error text of a peer need not be UTF-8.
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace cohort::bench
