// SPDX-License-Identifier: BSD-3-Clause
//
// What the host does in a step, all at once and before the GPU does its part: its actions (on_host) and the numbers
// that it gives to operators (HostArgument), in the order of the program.
#pragma once

#include <c10/core/Scalar.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

class HostPart {
 public:
  explicit HostPart(const Program& program);

  /// Runs the actions and asks for the numbers.
  void run();

  /// The numbers are counted through the program; this is the first one of the instruction, and the number of all.
  std::size_t first_number(std::size_t instruction) const { return first_number_[instruction]; }
  std::size_t numbers_of(std::size_t instruction) const {
    return first_number_[instruction + 1] - first_number_[instruction];
  }
  std::size_t size() const noexcept { return numbers_->size(); }
  const c10::Scalar& number(std::size_t index) const { return (*numbers_)[index]; }
  /// Gives the number of the last run().
  std::function<c10::Scalar()> source(std::size_t index) const;

 private:
  struct Event {
    const std::function<void()>* action;         // or
    const std::function<c10::Scalar()>* number;  // of which the next one is given
  };
  std::vector<Event> events_;              // into the program, which lives longer
  std::vector<std::size_t> first_number_;  // of each instruction, and behind the last one
  std::shared_ptr<std::vector<c10::Scalar>> numbers_;
};

/// To the bit.
bool are_equal_numbers(const c10::Scalar& a, const c10::Scalar& b);

}  // namespace cohort::recording
