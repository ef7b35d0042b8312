// SPDX-License-Identifier: BSD-3-Clause
//
// What a driver is asked and what it answers, each one line of JSON:
//
//   {"operation": "all_reduce", "dtype": "f32", "reduction": "sum", "bytes": 65536, "root": 0, ...}
//   {"us": [1.23, 1.24, 1.22], "batch": 12, "wrong": 0}
//   {"refusal": "why it does not do this"}
//   {"error": "what went wrong"}
//
// A sample is the time of `batch` operations back to back, divided by their number. The slowest rank's sample counts,
// since that is what a program waits for.
#pragma once

#include <cohort/dtype.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "measure/operation.h"

namespace cohort::measure {

struct Command {
  Operation operation = Operation::all_reduce;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
  std::size_t bytes = 0;
  int root = 0;
  int warmup = 5;
  int iters = 20;  ///< samples
  int batch = 0;   ///< operations in a sample; 0: as many as make the clock and the start of a sample negligible
  /// The operations of a sample follow one another on memory that nobody touches in between, and samples are taken for
  /// as long as `limit` says, whatever `iters` is: a slice of time in turn with others.
  bool back_to_back = false;
  bool blocking = true;
  bool in_place = true;
  bool check = false;
  std::chrono::microseconds limit{0};  ///< take fewer samples than asked for (but three) after this long; 0: never

  bool operator==(const Command&) const = default;
};

struct Answer {
  std::vector<double> microseconds{};  ///< time of one operation, for each sample
  int batch = 1;
  std::uint64_t wrong = 0;  ///< elements that differ from the serial reference, summed over all ranks
  std::string refusal{};    ///< why the system does not support this
  std::string error{};      ///< what went wrong

  bool operator==(const Answer&) const = default;
};

std::string to_line(const Command& command);
std::string to_line(const Answer& answer);
/// Throws a ValueError where the line is not of this form.
Command parse_command(std::string_view line);
Answer parse_answer(std::string_view line);

/// Asks a driver to give its memory back to the system.
inline constexpr std::string_view release_line = "release";

}  // namespace cohort::measure
