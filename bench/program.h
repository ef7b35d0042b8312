// SPDX-License-Identifier: BSD-3-Clause
//
// The flags that the programs of this folder have in common: which figures, where to write them, the time limit.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <string>
#include <vector>

#include "measure/report.h"

namespace cohort::bench {

class Program {
 public:
  Program(const std::string& what, const std::vector<std::string>& figures)
      : app(what + "\nA missed bar is printed as MISSED and does not change the exit code.") {
    app.add_option("--only", only_, "Measure only these, separated by commas")
        ->delimiter(',')
        ->check(CLI::IsMember(figures));
    app.add_option("--json", json_, "Write the figures to this file as well");
    app.add_option("--limit", limit_, "Give up after this many seconds")->capture_default_str();
  }

  bool wants(const std::string& figure) const {
    return only_.empty() || std::count(only_.begin(), only_.end(), figure) > 0;
  }

  /// main's: reads the flags, calls measure(report).
  template <class Measure>
  int run(int argc, char** argv, Measure&& measure) {
    CLI11_PARSE(app, argc, argv);
    // Nothing here may hang; the children end with this process.
    ::alarm(limit_);
    try {
      Report report;
      measure(report);
      if (!json_.empty()) report.write_json(json_);
      return 0;
    } catch (const std::exception& e) {
      fmt::print(stderr, "{}: {}\n", program_invocation_short_name, e.what());
      return 1;
    }
  }

  CLI::App app;

 private:
  std::vector<std::string> only_;
  std::string json_;
  unsigned limit_ = 300;
};

}  // namespace cohort::bench
