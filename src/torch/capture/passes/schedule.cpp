// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "torch/capture/passes/memory_plan.h"

namespace cohort::recording {

namespace {

// Tensors of which nobody notices one more.
constexpr std::size_t free_bytes = std::size_t{1} << 20;

std::ptrdiff_t distance_of(std::size_t place) {
  return static_cast<std::ptrdiff_t>(place);
}

}  // namespace

Effects effects_of_wait(const Instruction& collective, const Resources& resources) {
  Effects effects{.is_opaque = true};
  for (const auto id : collective.reads) effects.reads.push_back(resources.storage_of(id));
  for (const auto id : collective.writes) effects.writes.push_back(resources.storage_of(id));
  for (const auto& each : collective.results) {
    effects.writes.push_back(resources.storage_of(each.value));
    effects.reads.push_back(resources.existence_of(each.value));
  }
  std::sort(effects.reads.begin(), effects.reads.end());
  std::sort(effects.writes.begin(), effects.writes.end());
  return effects;
}

Schedule::Schedule(Program& program)
    : program_(program),
      resources_(program),
      effects_(effects_of(program, resources_)),
      footprint_(resources_),
      order_(program.instructions.size()),
      is_made_(resources_.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  const auto lifetimes = lifetimes_of(program);
  const auto live = live_bytes(lifetimes, order_.size());
  limit_ = *std::max_element(live.begin(), live.end()) + free_bytes;
  for (const auto& each : lifetimes) is_made_[each.storage] = true;
}

std::size_t Schedule::made_bytes(std::size_t index) const {
  const auto& instruction = program_.instructions[index];
  std::size_t bytes = 0;
  if (is_view(instruction, resources_)) return bytes;
  for (const auto& each : instruction.results) bytes += bytes_of(program_.values[each.value].shown);
  return bytes;
}

bool Schedule::touches_made_memory(const Effects& effects) const {
  const auto is_made = [&](Resource each) { return is_made_[each]; };
  return std::any_of(effects.reads.begin(), effects.reads.end(), is_made) ||
         std::any_of(effects.writes.begin(), effects.writes.end(), is_made);
}

/// Whether what is put in front of this place would part a call on a distributed tensor.
bool Schedule::is_within_call(std::size_t place) const {
  return place > 0 && place < size() && at(place).region != 0 && at(place).region == at(place - 1).region;
}

bool Schedule::has_work(std::size_t from, std::size_t to) const {
  for (auto i = from; i < to; ++i) {
    if (!effects_at(i).is_light && kind_of(at(i)) != GraphNode::Kind::wait) return true;
  }
  return false;
}

Schedule::Rise Schedule::rise_of(std::size_t place) {
  footprint_.clear();
  footprint_.add(effects_at(place));
  Rise rise{.to = place, .moved = {order_[place]}};
  std::vector<std::size_t> carried{order_[place]};  // what goes with it if it passes something beyond them
  auto made = made_bytes(order_[place]);
  std::vector<std::size_t> live;
  for (auto above = place; above-- > 0;) {
    const auto& effects = effects_at(above);
    if (footprint_.conflicts_with(effects)) {
      if (!effects.is_light) break;
      footprint_.add(effects);
      carried.insert(carried.begin(), order_[above]);
      made += made_bytes(order_[above]);
      continue;
    }
    if (made > 0) {
      if (live.empty()) live = live_bytes(lifetimes_of(program_, order_), size());
      if (live[above] + made > limit_) break;
    }
    if (!is_within_call(above)) rise = {.to = above, .moved = carried};
  }
  return rise;
}

void Schedule::move_up(std::size_t place, const Rise& rise) {
  std::vector<std::size_t> passed;
  for (auto i = rise.to; i <= place; ++i) {
    if (std::find(rise.moved.begin(), rise.moved.end(), order_[i]) == rise.moved.end()) passed.push_back(order_[i]);
  }
  const auto next = std::copy(rise.moved.begin(), rise.moved.end(), order_.begin() + distance_of(rise.to));
  std::copy(passed.begin(), passed.end(), next);
}

std::size_t Schedule::fall_of(std::size_t place, const Effects& effects) {
  footprint_.clear();
  footprint_.add(effects);
  std::size_t held = 0;  // bytes that are let go here, and would be held longer
  const auto lifetimes = touches_made_memory(effects) ? lifetimes_of(program_, order_) : std::vector<Lifetime>();
  for (const auto& each : lifetimes) {
    const bool is_touched = std::binary_search(effects.reads.begin(), effects.reads.end(), each.storage) ||
                            std::binary_search(effects.writes.begin(), effects.writes.end(), each.storage);
    if (is_touched && each.last <= place) held += each.bytes;
  }
  const auto live = held > 0 ? live_bytes(lifetimes, size()) : std::vector<std::size_t>();
  auto below = place + 1;
  auto found = below;
  for (; below < size(); ++below) {
    if (!is_within_call(below)) found = below;
    if (footprint_.conflicts_with(effects_at(below)) || (held > 0 && live[below] + held > limit_)) return found;
  }
  return below;
}

void Schedule::move_down(std::size_t place, std::size_t in_front_of) {
  std::rotate(order_.begin() + distance_of(place), order_.begin() + distance_of(place) + 1,
              order_.begin() + distance_of(in_front_of));
}

std::size_t Schedule::move_waits_down() {
  std::size_t count = 0;
  for (auto place = size(); place-- > 0;) {
    if (kind_of(at(place)) != GraphNode::Kind::wait) continue;
    const auto to = fall_of(place, effects_at(place));
    if (!has_work(place + 1, to)) continue;
    move_down(place, to);
    ++count;
  }
  return count;
}

void Schedule::insert_behind(std::size_t place, Instruction instruction, Effects effects) {
  order_.insert(order_.begin() + distance_of(place) + 1, program_.instructions.size());
  program_.instructions.push_back(std::move(instruction));
  effects_.push_back(std::move(effects));
}

std::vector<std::size_t> Schedule::gather(const std::vector<std::size_t>& places, std::size_t behind) {
  footprint_.clear();
  for (const auto each : places) footprint_.add(effects_at(each));
  std::vector<std::size_t> before;
  std::vector<std::size_t> after;
  for (auto i = places.back() + 1; i < behind; ++i) {
    if (!footprint_.conflicts_with(effects_at(i))) {
      before.push_back(order_[i]);
      continue;
    }
    if (!effects_at(i).is_light) return {};
    footprint_.add(effects_at(i));
    after.push_back(order_[i]);
  }
  // The order among the collectives stays; all else must not matter.
  if (footprint_.conflicts_with(effects_of_wait(at(behind), resources_))) return {};
  std::vector<std::size_t> sequence(before);
  for (const auto each : places) sequence.push_back(order_[each]);
  sequence.push_back(order_[behind]);
  sequence.insert(sequence.end(), after.begin(), after.end());
  std::copy(sequence.begin(), sequence.end(), order_.begin() + distance_of(places.front()));
  std::vector<std::size_t> found(places.size() + 1);
  std::iota(found.begin(), found.end(), places.front() + before.size());
  return found;
}

void Schedule::apply() {
  std::vector<Instruction> ordered;
  ordered.reserve(size());
  for (const auto each : order_) ordered.push_back(std::move(program_.instructions[each]));
  program_.instructions = std::move(ordered);
}

}  // namespace cohort::recording
