// SPDX-License-Identifier: BSD-3-Clause
//
// Shows how far training has come: a line that is written over on a terminal, otherwise a line for each tenth.
#pragma once

#include <chrono>
#include <string>

namespace gpt {

class Progress {
 public:
  /// `is_visible`: one rank speaks, the others compute in silence. `in_place`: write over one line of the terminal,
  /// also where standard output is a launcher's pipe.
  Progress(bool is_visible, bool in_place, int steps, int tokens_per_step);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `extra` is added to the line.
  void step(int step, double loss, const std::string& extra = {});
  double seconds() const;
  double tokens_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::string bar() const;
  void show_in_place(const std::string& line) const;

  bool is_visible_;
  int steps_;
  int tokens_per_step_;
  int done_ = 0;
  int terminal_ = -1;
  Clock::time_point started_ = Clock::now();
  Clock::time_point shown_{};
};

}  // namespace gpt
