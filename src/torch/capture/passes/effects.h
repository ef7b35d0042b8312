// SPDX-License-Identifier: BSD-3-Clause
//
// What each instruction of a program touches. Two instructions may change places if neither writes what the other one
// touches; every pass that moves, merges or removes something asks nothing else.
//
// Memory is told apart by storage: views of one storage count as one, whatever part of it they show. Besides memory
// there are things that have an order: collectives (over all groups, so that no reordering can make ranks wait for each
// other in a circle), what the host does and the numbers that it gives, and random generators.
#pragma once

#include <cstddef>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// A storage, an order, or the existence of a value.
using Resource = std::size_t;

struct Effects {
  std::vector<Resource> reads{};
  std::vector<Resource> writes{};
  /// It only makes tensors (views, empty ones) and reads or writes no element.
  bool is_light = false;
  /// It may do what its schema does not say, or draws random numbers: it can be neither removed nor merged.
  bool is_opaque = false;
};

/// Numbers for the resources of a program.
class Resources {
 public:
  explicit Resources(const Program& program);

  Resource storage_of(ValueId value) const { return storages_[value]; }
  Resource existence_of(ValueId value) const { return first_existence_ + value; }
  Resource collectives() const { return first_existence_ - 3; }  ///< sends, receives and host actions, too
  Resource host() const { return first_existence_ - 2; }
  Resource random() const { return first_existence_ - 1; }
  std::size_t size() const { return first_existence_ + storages_.size(); }

 private:
  std::vector<Resource> storages_;  // of the values
  std::size_t first_existence_ = 0;
};

/// Whether the instruction only shows memory of its arguments. An operator that is a view by its schema may have
/// copied: to(), contiguous() and reshape() do if they must.
bool is_view(const Instruction& instruction, const Resources& resources);

/// Of all instructions, in order.
std::vector<Effects> effects_of(const Program& program, const Resources& resources);

/// What a set of instructions touches together.
class Footprint {
 public:
  explicit Footprint(const Resources& resources) : marks_(resources.size()) {}
  void add(const Effects& effects);
  /// Whether the order of these instructions and that one matters.
  bool conflicts_with(const Effects& effects) const;
  void clear();

 private:
  enum class Mark : unsigned char { none, read, written };
  std::vector<Mark> marks_;
  std::vector<Resource> marked_;
};

}  // namespace cohort::recording
