// SPDX-License-Identifier: BSD-3-Clause
//
// What the programs of this folder have in common: parts that --only chooses from, rounds, where to write the figures,
// the time limit.
//
//   int main(int argc, char** argv) {
//     Program program("Measures the store.");
//     program.part("memory", [&](Report& report) { ...; report.print("Memory of the server"); });
//     return program.run(argc, argv);
//   }
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "measure/report.h"

namespace cohort::benchmarks {

using namespace measure;  // what they all measure with

class Program {
 public:
  /// `rounds` is the default of --rounds; 0: parts have their own.
  explicit Program(const std::string& what, int rounds = 0)
      : app_(what + "\nA missed bar is printed as MISSED and does not change the exit code."), rounds_(rounds) {
    app_.add_option("--json", json_, "Write the figures to this file as well");
    app_.add_option("--limit", limit_, "Give up after this many seconds")->capture_default_str();
    auto* const option = app_.add_option("--rounds", rounds_, "Rounds of each figure")->check(CLI::PositiveNumber);
    if (rounds > 0) option->capture_default_str();
  }

  template <class T>
  CLI::Option* option(const std::string& name, T& value, const std::string& what) {
    return app_.add_option(name, value, what)->capture_default_str();
  }
  /// A number, or a list of them, that a part has for itself.
  std::shared_ptr<const int> number(const std::string& name, int value, const std::string& what) {
    auto kept = std::make_shared<int>(value);
    option(name, *kept, what)->check(CLI::PositiveNumber);
    return kept;
  }
  std::shared_ptr<const std::vector<int>> list(const std::string& name, std::vector<int> values,
                                               const std::string& what) {
    auto kept = std::make_shared<std::vector<int>>(std::move(values));
    option(name, *kept, what)->delimiter(',')->check(CLI::PositiveNumber);
    return kept;
  }

  int rounds(int otherwise = 0) const { return rounds_ > 0 ? rounds_ : otherwise; }

  /// `measure` adds rows to the report and prints them.
  void part(std::string name, std::function<void(Report&)> measure) {
    parts_.emplace_back(std::move(name), std::move(measure));
  }

  /// main's: reads the flags, runs the parts.
  int run(int argc, char** argv) {
    std::vector<std::string> names;
    for (const auto& part : parts_) names.push_back(part.first);
    std::vector<std::string> only;
    if (parts_.size() > 1) {
      app_.add_option("--only", only, "Measure only these, separated by commas")
          ->delimiter(',')
          ->check(CLI::IsMember(names));
    }
    CLI11_PARSE(app_, argc, argv);
    // Nothing here may hang; the children end with this process.
    ::alarm(limit_);
    try {
      Report report;
      for (const auto& [name, measure] : parts_) {
        if (only.empty() || std::count(only.begin(), only.end(), name) > 0) measure(report);
      }
      if (!json_.empty()) report.write_json(json_);
      return 0;
    } catch (const std::exception& e) {
      fmt::print(stderr, "{}: {}\n", program_invocation_short_name, e.what());
      return 1;
    }
  }

 private:
  CLI::App app_;
  int rounds_;
  std::string json_;
  unsigned limit_ = 300;
  std::vector<std::pair<std::string, std::function<void(Report&)>>> parts_;
};

}  // namespace cohort::benchmarks
