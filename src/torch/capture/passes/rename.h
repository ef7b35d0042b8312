// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// New names of values, for the instructions that use them and for what the step leaves.
class Renaming {
 public:
  explicit Renaming(const Program& program);

  /// `value` is `other` from now on. Views of its storage are views of the other one's.
  void rename(ValueId value, ValueId other) { names_[value] = names_[other]; }
  ValueId operator()(ValueId value) const { return names_[value]; }

  /// In what the instruction uses; what it makes keeps its names.
  void apply(Instruction& instruction) const;
  /// In what the step leaves, and among the storages. To be called once, at the end.
  void finish(Program& program) const;

 private:
  std::vector<ValueId> names_;
};

}  // namespace cohort::recording
