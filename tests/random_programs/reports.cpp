// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace cohort::random_programs {

namespace {

constexpr std::string_view mark = "@report\t";

}  // namespace

std::string to_line(std::uint64_t seed, const Report& report) {
  auto text = report.failure.text;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return fmt::format("{}{}\t{}\t{}\t{}\t{}\n", mark, seed, report.rank, report.failure.step, report.failure.kind, text);
}

std::vector<std::pair<std::uint64_t, Report>> from_lines(const std::string& lines, std::string& rest) {
  std::vector<std::pair<std::uint64_t, Report>> reports;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(mark)) {
      rest += line + "\n";
      continue;
    }
    std::istringstream fields(line.substr(mark.size()));
    std::uint64_t seed = 0;
    Report report;
    fields >> seed >> report.rank >> report.failure.step;
    fields.get();
    std::getline(fields, report.failure.kind, '\t');
    std::getline(fields, report.failure.text);
    reports.emplace_back(seed, report);
  }
  return reports;
}

std::string to_string(const Report& report) {
  const auto who = report.rank < 0 ? std::string("the program") : fmt::format("rank {}", report.rank);
  const auto where = report.failure.step == 0 ? std::string() : fmt::format(" in step {}", report.failure.step);
  return fmt::format("{}{}: {}: {}", who, where, report.failure.kind, report.failure.text);
}

}  // namespace cohort::random_programs
