// SPDX-License-Identifier: BSD-3-Clause
//
// What was measured, beside the bar it has to meet: as a table for people, as JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cohort::measure {

struct Bar {
  enum class Kind { at_most, at_least };
  Kind kind;
  double value;
  /// The bar is set for a machine with this many cores; a miss on a smaller one means nothing.
  unsigned cores = 1;
};
constexpr Bar at_most(double value, unsigned cores = 1) {
  return {Bar::Kind::at_most, value, cores};
}
constexpr Bar at_least(double value, unsigned cores = 1) {
  return {Bar::Kind::at_least, value, cores};
}

struct Row {
  std::string what;
  std::string unit;  ///< of ours, peer and difference
  double ours = 0;
  std::optional<double> peer{};
  std::string peer_name{};
  /// The bar is for the ratio or the difference, whichever is set, otherwise for `ours`.
  std::optional<double> ratio{};
  std::optional<double> difference{};
  std::optional<Bar> bar{};
  std::string note{};
};

/// Medians of the times that two took in the same rounds. The ratio is that of ours to the peer's, or, where the bar is
/// at least something, how many times faster ours is.
Row compared(std::string what, std::string unit, const std::vector<double>& ours, const std::vector<double>& peer,
             std::string peer_name, std::optional<Bar> bar = {});

class Report {
 public:
  void add(Row row) { rows_.push_back(std::move(row)); }
  /// Prints the rows that were added since the last call.
  void print(const std::string& title);
  void write_json(const std::string& file) const;

 private:
  std::vector<Row> rows_;
  std::size_t printed_ = 0;
};

}  // namespace cohort::measure
