// SPDX-License-Identifier: BSD-3-Clause
//
// What was measured, beside the bar it has to meet: as a table for people, as JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cohort::bench {

double median(std::vector<double> values);

struct Bar {
  enum class Kind { at_most, at_least };
  Kind kind;
  double value;
  /// The bar is set for a machine with as many cores; on a smaller one a miss means nothing.
  unsigned cores = 1;
};

struct Row {
  std::string what;
  std::string unit;  ///< of ours and peer
  double ours = 0;
  std::optional<double> peer{};
  std::string peer_name{};
  /// What the bar is for: the median of the rounds' ratios, or `ours` where there is no ratio.
  std::optional<double> ratio{};
  std::optional<Bar> bar{};
  std::string note{};
};

class Report {
 public:
  void add(Row row);
  /// Prints the rows that were added since the last time.
  void print(const std::string& title);
  void write_json(const std::string& file) const;

 private:
  std::vector<Row> rows_;
  std::size_t printed_ = 0;
};

/// Rounds in which we and a peer took turns.
struct Rounds {
  std::vector<double> ours{};
  std::vector<double> peer{};
  /// Of two figures of one round: what disturbs the machine disturbs both.
  double median_ratio() const;
};

}  // namespace cohort::bench
