// SPDX-License-Identifier: BSD-3-Clause
//
// The order of a program's instructions, for passes that change it: collectives move up to where their data are there,
// together with the views and empty tensors that only they need; waits move down to where the data are used.
//
// A move that would raise the peak of live memory by more than a little is cut short: hoisting every all_gather of a
// sharded model to the beginning of the step would hold the whole model at once. None ends within a call on a
// distributed tensor, which is one node of the graph.
#pragma once

#include <cstddef>
#include <vector>

#include "torch/capture/passes/effects.h"
#include "torch/capture/program.h"

namespace cohort::recording {

class Schedule {
 public:
  explicit Schedule(Program& program);

  std::size_t size() const { return order_.size(); }
  Instruction& at(std::size_t place) { return program_.instructions[order_[place]]; }
  const Instruction& at(std::size_t place) const { return program_.instructions[order_[place]]; }
  const Effects& effects_at(std::size_t place) const { return effects_[order_[place]]; }
  const Resources& resources() const { return resources_; }

  /// Where the instruction at `place` could stand, and those that must go with it, in order and itself the last.
  struct Rise {
    std::size_t to;
    std::vector<std::size_t> moved{};
  };
  Rise rise_of(std::size_t place);
  void move_up(std::size_t place, const Rise& rise);

  /// The first place behind `place` where an instruction with these effects must stand at the latest: in front of it.
  std::size_t fall_of(std::size_t place, const Effects& effects);
  void move_down(std::size_t place, std::size_t in_front_of);
  /// Moves each wait to where it must stand at the latest, and returns how many passed some work.
  std::size_t move_waits_down();

  /// Whether anything but views, empty tensors and waits stands in [from, to).
  bool has_work(std::size_t from, std::size_t to) const;

  void insert_behind(std::size_t place, Instruction instruction, Effects effects);

  /// Gathers the instructions at `places`, which stand side by side, in front of the one at `behind`, which then
  /// follows them: if nothing in between depends on them but views, which go behind it. Returns the new places of them
  /// all, or nothing if it cannot be.
  std::vector<std::size_t> gather(const std::vector<std::size_t>& places, std::size_t behind);

  /// Puts the program's instructions in this order.
  void apply();

 private:
  std::size_t made_bytes(std::size_t index) const;
  bool touches_made_memory(const Effects& effects) const;
  bool is_within_call(std::size_t place) const;

  Program& program_;
  Resources resources_;
  std::vector<Effects> effects_;
  Footprint footprint_;
  std::vector<std::size_t> order_;
  std::size_t limit_ = 0;  // of live bytes
  std::vector<bool> is_made_;
};

/// The memory of a collective, without its place among the collectives: what the wait for it touches.
Effects effects_of_wait(const Instruction& collective, const Resources& resources);

}  // namespace cohort::recording
