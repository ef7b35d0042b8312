// SPDX-License-Identifier: BSD-3-Clause
//
// How far it is: a line that is written over on a terminal, and now and then one that stays.
#pragma once

#include <chrono>
#include <string>

namespace gpt {

class Progress {
 public:
  /// `visible`: the others say nothing.
  Progress(bool visible, int steps, int tokens_per_step);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `extra` is added to the line.
  void step(int step, double loss, const std::string& extra = {});
  double seconds() const;
  double tokens_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool visible_;
  int steps_;
  int tokens_per_step_;
  int done_ = 0;
  int terminal_ = -1;
  bool own_terminal_ = false;
  Clock::time_point started_ = Clock::now();
  Clock::time_point shown_{};
};

}  // namespace gpt
