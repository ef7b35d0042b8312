// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives move up to where their data are there, together with the views and empty tensors that only they need; waits
// move down to where the data are used. A move that would raise the peak of live memory by more than a little is cut short: hoisting every
// all_gather of a sharded model to the beginning of the step would hold the whole model at once.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "torch/capture/operator_traits.h"
#include "torch/capture/passes/effects.h"
#include "torch/capture/passes/memory_plan.h"
#include "torch/capture/passes/passes.h"
#include "torch/capture/waits.h"

namespace cohort::recording {

namespace {

// A blocking operation on an idle group runs on its caller's thread. An asynchronous one is handed to the group's thread
// and back, which costs 20 to 60 us on shm, as much as an all_reduce of 64 KiB takes; what is to run meanwhile must be
// worth it.
constexpr std::size_t smallest_message = 64 * 1024;
constexpr double shortest_work = 60;  // us
// Tensors of which nobody notices one more.
constexpr std::size_t free_bytes = std::size_t{1} << 20;

class OverlapPass {
 public:
  explicit OverlapPass(Program& program)
      : program_(program),
        resources_(program),
        effects_(effects_of(program, resources_)),
        footprint_(resources_),
        order_(program.instructions.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    const auto live = live_bytes(lifetimes_of(program), order_.size());
    limit_ = *std::max_element(live.begin(), live.end()) + free_bytes;
  }

  PassReport run() {
    // The list grows by the waits of collectives that become asynchronous.
    for (std::size_t place = 0; place < order_.size(); ++place) {
      const auto& instruction = program_.instructions[order_[place]];
      if (!is_issue(instruction)) continue;
      if (!is_asynchronous(instruction) && !make_asynchronous(place)) continue;
      if (start_earlier(place)) ++earlier_;
    }
    for (std::size_t place = order_.size(); place-- > 0;) {
      if (program_.instructions[order_[place]].kind == GraphNode::Kind::wait && wait_later(place)) ++later_;
    }
    std::vector<Instruction> moved;
    moved.reserve(order_.size());
    for (const auto each : order_) moved.push_back(std::move(program_.instructions[each]));
    program_.instructions = std::move(moved);
    return {.name = "overlap",
            .count = earlier_ + later_,
            .text = fmt::format("{} collectives start earlier, {} waits stand later, {} blocking collectives became "
                                "asynchronous",
                                earlier_, later_, split_)};
  }

 private:
  static bool is_issue(const Instruction& instruction) {
    return instruction.collective != nullptr || (instruction.op && instruction.group != nullptr);
  }
  static bool is_asynchronous(const Instruction& instruction) {
    return instruction.collective != nullptr ? instruction.flight.has_value() : !instruction.is_blocking;
  }
  const Effects& effects_at(std::size_t place) const { return effects_[order_[place]]; }

  /// Of the memory that the instruction makes.
  std::size_t made_bytes(std::size_t index) const {
    const auto& instruction = program_.instructions[index];
    std::size_t bytes = 0;
    if (instruction.op && traits_of(*instruction.op).is_view) return bytes;
    for (const auto& each : instruction.results) bytes += bytes_of(program_.values[each.value].shown);
    return bytes;
  }

  /// Where the collective at `place` could stand instead, and what must go with it, in order.
  struct Rise {
    std::size_t to;
    std::vector<std::size_t> moved{};
  };
  Rise rise_of(std::size_t place) {
    footprint_.clear();
    footprint_.add(effects_at(place));
    Rise rise{.to = place, .moved = {order_[place]}};
    std::vector<std::size_t> light;  // that go with it if it passes something beyond them
    auto made = made_bytes(order_[place]);
    std::vector<std::size_t> live;
    for (auto above = place; above-- > 0;) {
      const auto& effects = effects_at(above);
      if (footprint_.conflicts_with(effects)) {
        if (!effects.is_light) break;
        footprint_.add(effects);
        light.push_back(order_[above]);
        made += made_bytes(order_[above]);
        continue;
      }
      if (made > 0) {
        if (live.empty()) live = live_bytes(lifetimes_of(program_, order_), order_.size());
        if (live[above] + made > limit_) break;
      }
      rise.to = above;
      rise.moved.insert(rise.moved.begin(), light.rbegin(), light.rend());
      light.clear();
    }
    return rise;
  }

  bool start_earlier(std::size_t place) {
    const auto rise = rise_of(place);
    if (!passes_work(rise.to, place)) return false;
    std::vector<std::size_t> passed;
    for (auto i = rise.to; i <= place; ++i) {
      if (std::find(rise.moved.begin(), rise.moved.end(), order_[i]) == rise.moved.end()) passed.push_back(order_[i]);
    }
    auto next = std::copy(rise.moved.begin(), rise.moved.end(), order_.begin() + static_cast<std::ptrdiff_t>(rise.to));
    std::copy(passed.begin(), passed.end(), next);
    return true;
  }

  /// Whether anything but views, empty tensors and waits stands in [from, to).
  bool passes_work(std::size_t from, std::size_t to) const {
    for (auto i = from; i < to; ++i) {
      if (!effects_at(i).is_light && program_.instructions[order_[i]].kind != GraphNode::Kind::wait) return true;
    }
    return false;
  }

  /// The first place behind `place` where the instruction, or one with these effects, must stand at the latest.
  std::size_t fall_of(std::size_t place, const Effects& effects) {
    footprint_.clear();
    footprint_.add(effects);
    std::size_t held = 0;  // bytes that are let go here, and would be held longer
    const auto lifetimes = touches_made_memory(effects) ? lifetimes_of(program_, order_) : std::vector<Lifetime>();
    for (const auto& each : lifetimes) {
      const bool is_touched = std::binary_search(effects.reads.begin(), effects.reads.end(), each.storage) ||
                              std::binary_search(effects.writes.begin(), effects.writes.end(), each.storage);
      if (is_touched && each.last <= place) held += each.bytes;
    }
    const auto live = held > 0 ? live_bytes(lifetimes, order_.size()) : std::vector<std::size_t>();
    auto below = place + 1;
    for (; below < order_.size(); ++below) {
      if (footprint_.conflicts_with(effects_at(below)) || (held > 0 && live[below] + held > limit_)) break;
    }
    return below;
  }

  bool touches_made_memory(const Effects& effects) {
    if (is_made_.empty()) {
      is_made_.resize(resources_.size(), false);
      for (const auto& each : lifetimes_of(program_, order_)) is_made_[each.storage] = true;
    }
    const auto is_made = [&](Resource each) { return is_made_[each]; };
    return std::any_of(effects.reads.begin(), effects.reads.end(), is_made) ||
           std::any_of(effects.writes.begin(), effects.writes.end(), is_made);
  }

  bool wait_later(std::size_t place) {
    const auto to = fall_of(place, effects_at(place));
    if (!passes_work(place + 1, to)) return false;
    std::rotate(order_.begin() + static_cast<std::ptrdiff_t>(place),
                order_.begin() + static_cast<std::ptrdiff_t>(place) + 1,
                order_.begin() + static_cast<std::ptrdiff_t>(to));
    return true;
  }

  /// A guess that is rather too short, in us: replaying an operator, and the memory that it touches.
  double duration_of(std::size_t index) const {
    const auto& instruction = program_.instructions[index];
    if (effects_[index].is_light || instruction.kind != GraphNode::Kind::op) return 0;
    std::size_t bytes = 0;
    for (const auto id : instruction.reads) bytes += bytes_of(program_.values[id].shown);
    for (const auto id : instruction.writes) bytes += bytes_of(program_.values[id].shown);
    for (const auto& each : instruction.results) bytes += bytes_of(program_.values[each.value].shown);
    constexpr double bytes_per_us = 10'000;
    return 1 + static_cast<double>(bytes) / bytes_per_us;
  }

  bool is_worth_a_flight(std::size_t place) {
    const auto& instruction = program_.instructions[order_[place]];
    std::size_t message = 0;
    for (const auto id : instruction.reads) message += bytes_of(program_.values[id].shown);
    if (message == 0) {
      for (const auto id : instruction.writes) message += bytes_of(program_.values[id].shown);
    }
    if (message < smallest_message) return false;
    const auto from = rise_of(place).to;
    const auto to = fall_of(place, effects_of_wait(instruction));
    double work = 0;
    for (auto i = from; i < to; ++i) work += i == place ? 0 : duration_of(order_[i]);
    return work >= shortest_work;
  }

  /// The memory of the collective, without its place among the collectives.
  Effects effects_of_wait(const Instruction& collective) const {
    Effects effects{.is_opaque = true};
    for (const auto id : collective.reads) effects.reads.push_back(resources_.storage_of(id));
    for (const auto id : collective.writes) effects.writes.push_back(resources_.storage_of(id));
    for (const auto& each : collective.results) {
      effects.writes.push_back(resources_.storage_of(each.value));
      effects.reads.push_back(resources_.existence_of(each.value));
    }
    std::sort(effects.reads.begin(), effects.reads.end());
    std::sort(effects.writes.begin(), effects.writes.end());
    return effects;
  }

  bool make_asynchronous(std::size_t place) {
    const auto index = order_[place];
    auto& instruction = program_.instructions[index];
    const bool has_memory = !instruction.reads.empty() || !instruction.writes.empty();
    // This operator waits inside, for it has to rearrange what has arrived.
    const bool waits_inside = instruction.op && instruction.op->operator_name().name == "cohort::shard_dim_alltoall";
    if (!has_memory || waits_inside || !is_worth_a_flight(place)) return false;
    std::vector<Instruction> waits;
    if (instruction.collective != nullptr) {
      auto collective = *instruction.collective;
      collective.options.async_op = true;
      instruction.collective = std::make_shared<const Collective>(std::move(collective));
      instruction.flight = program_.flights++;
      waits.push_back(wait_for(instruction));
    } else {
      instruction.is_blocking = false;
      for (const auto& each : instruction.results) waits.push_back(wait_for_value(instruction, each.value));
      for (const auto id : instruction.writes) waits.push_back(wait_for_value(instruction, id));
    }
    const auto effects = effects_of_wait(instruction);
    auto below = order_.begin() + static_cast<std::ptrdiff_t>(place) + 1;
    for (auto& each : waits) {
      below = order_.insert(below, program_.instructions.size()) + 1;
      program_.instructions.push_back(std::move(each));
      effects_.push_back(effects);
    }
    ++split_;
    return true;
  }

  static Instruction wait_for_value(const Instruction& collective, ValueId value) {
    static const auto wait_tensor = c10::Dispatcher::singleton().findSchemaOrThrow("cohort::wait_tensor", "");
    Instruction wait{.kind = GraphNode::Kind::wait, .op = wait_tensor, .keys = collective.keys};
    wait.arguments = {c10::IValue()};
    wait.tensors.push_back({.position = 0, .in_list = -1, .value = value});
    wait.reads.push_back(value);
    return wait;
  }

  Program& program_;
  Resources resources_;
  std::vector<Effects> effects_;
  Footprint footprint_;
  std::vector<std::size_t> order_;
  std::size_t limit_ = 0;  // of live bytes
  std::vector<bool> is_made_;
  std::size_t earlier_ = 0;
  std::size_t later_ = 0;
  std::size_t split_ = 0;
};

}  // namespace

PassReport overlap(Program& program) {
  const bool has_collectives =
      std::any_of(program.instructions.begin(), program.instructions.end(),
                  [](const Instruction& each) { return each.kind == GraphNode::Kind::collective; });
  return has_collectives ? OverlapPass(program).run() : PassReport{.name = "overlap"};
}

}  // namespace cohort::recording
