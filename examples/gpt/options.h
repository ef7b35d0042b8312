// SPDX-License-Identifier: BSD-3-Clause
//
// The options of the demo's command line.
#pragma once

#include <cstdint>
#include <string>

namespace gpt {

struct Options {
  std::string text{};  ///< a file; else stories.txt beside the program
  std::string device = "cpu";
  int steps = 500;
  int batch = 16;  ///< sequences in a step, over all processes
  int context = 64;
  int layers = 3;
  int heads = 4;
  int width = 96;
  double learning_rate = 3e-3;
  std::uint64_t seed = 1;
  int threads = 1;
  int sample = 600;  ///< characters
  double temperature = 0.6;
  int compare = 100;       ///< steps that one process repeats alone; 0: none
  bool in_place = false;   ///< progress is one line of the terminal that is written over
  std::string losses{};    ///< a file for both loss curves
  std::string timeline{};  ///< a file for when each bucket of gradients was reduced
  /// Else double: rounding differs with the order of sums, and training makes small differences large. In double
  /// precision they stay too small to see, so the curves show what they are to show.
  bool single_precision = false;
};

/// Writes --help, or what is wrong, and says in `exit_code` how the program is to end; true: go on.
bool parse(int argc, char** argv, Options& options, int& exit_code);

}  // namespace gpt
