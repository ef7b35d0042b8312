// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives start as early and are awaited as late as schedule.h allows.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "torch/capture/passes/passes.h"
#include "torch/capture/passes/schedule.h"
#include "torch/capture/waits.h"

namespace cohort::recording {

namespace {

// A blocking operation on an idle group runs on its caller's thread. An asynchronous one is handed to the group's
// thread and back, which costs 20 to 80 us, as much as an all_reduce of 64 KiB takes on shm; what is to run meanwhile
// must be worth it.
constexpr std::size_t smallest_message = 64 * 1024;
constexpr double shortest_work = 60;  // us

class OverlapPass {
 public:
  explicit OverlapPass(Program& program) : program_(program), schedule_(program) {}

  PassReport run() {
    std::size_t earlier = 0;
    std::size_t split = 0;
    for (std::size_t place = 0; place < schedule_.size(); ++place) {
      if (!is_issue(schedule_.at(place))) continue;
      if (!is_asynchronous(schedule_.at(place))) {
        if (!is_worth_a_flight(place)) continue;
        make_asynchronous(place);
        ++split;
      }
      const auto rise = schedule_.rise_of(place);
      if (!schedule_.has_work(rise.to, place)) continue;
      schedule_.move_up(place, rise);
      ++earlier;
    }
    const auto later = schedule_.move_waits_down();
    schedule_.apply();
    return {.name = "overlap",
            .count = earlier + later,
            .text = fmt::format("{} collectives start earlier, {} waits stand later, {} blocking collectives became "
                                "asynchronous",
                                earlier, later, split)};
  }

 private:
  static bool is_issue(const Instruction& instruction) { return kind_of(instruction) == GraphNode::Kind::collective; }
  static bool is_asynchronous(const Instruction& instruction) {
    const auto* const call = instruction.as<CollectiveCall>();
    return call != nullptr ? call->flight.has_value() : !instruction.as<OperatorCall>()->is_blocking;
  }

  template <class Values>
  std::size_t bytes_of_all(const Values& values) const {
    std::size_t bytes = 0;
    for (const auto id : values) bytes += bytes_of(program_.values[id].shown);
    return bytes;
  }

  /// A guess that is rather too short, in us: replaying an operator, and the memory that it touches.
  double duration_at(std::size_t place) const {
    const auto& instruction = schedule_.at(place);
    if (schedule_.effects_at(place).is_light || kind_of(instruction) != GraphNode::Kind::op) return 0;
    auto bytes = bytes_of_all(instruction.reads) + bytes_of_all(instruction.writes);
    for (const auto& each : instruction.results) bytes += bytes_of(program_.values[each.value].shown);
    constexpr double bytes_per_us = 10'000;
    return 1 + static_cast<double>(bytes) / bytes_per_us;
  }

  bool is_worth_a_flight(std::size_t place) {
    const auto& instruction = schedule_.at(place);
    // This operator waits inside, for it has to rearrange what has arrived.
    const auto* const call = instruction.as<OperatorCall>();
    if (call != nullptr && call->op.operator_name().name == "cohort::shard_dim_alltoall") return false;
    if (std::max(bytes_of_all(instruction.reads), bytes_of_all(instruction.writes)) < smallest_message) return false;
    const auto from = schedule_.rise_of(place).to;
    const auto to = schedule_.fall_of(place, effects_of_wait(instruction, schedule_.resources()));
    double work = 0;
    for (auto i = from; i < to; ++i) work += i == place ? 0 : duration_at(i);
    return work >= shortest_work;
  }

  void make_asynchronous(std::size_t place) {
    auto& instruction = schedule_.at(place);
    std::vector<Instruction> waits;
    if (auto* const call = instruction.as<CollectiveCall>()) {
      auto collective = *call->collective;
      collective.options.async_op = true;
      call->collective = std::make_shared<const Collective>(std::move(collective));
      call->flight = program_.flights++;
      waits.push_back(wait_for(instruction));
    } else {
      instruction.as<OperatorCall>()->is_blocking = false;
      for (const auto& each : instruction.results) waits.push_back(wait_for_value(instruction, each.value));
      for (const auto id : instruction.writes) waits.push_back(wait_for_value(instruction, id));
    }
    const auto effects = effects_of_wait(instruction, schedule_.resources());
    for (auto& each : waits) {
      each.region = instruction.region;
      each.calls = instruction.calls;
    }
    for (auto& each : waits) {
      schedule_.insert_behind(place, std::move(each), effects);
    }
  }

  static Instruction wait_for_value(const Instruction& collective, ValueId value) {
    static const auto wait_tensor = c10::Dispatcher::singleton().findSchemaOrThrow("cohort::wait_tensor", "");
    Instruction wait;
    wait.action = OperatorCall{
        .op = wait_tensor, .keys = collective.as<OperatorCall>()->keys, .arguments = {c10::IValue()}, .is_wait = true};
    wait.tensors.push_back({.position = 0, .in_list = -1, .value = value});
    wait.reads.push_back(value);
    return wait;
  }

  Program& program_;
  Schedule schedule_;
};

}  // namespace

PassReport overlap(Program& program) {
  const bool has_collectives =
      std::any_of(program.instructions.begin(), program.instructions.end(),
                  [](const Instruction& each) { return kind_of(each) == GraphNode::Kind::collective; });
  return has_collectives ? OverlapPass(program).run() : PassReport{.name = "overlap"};
}

}  // namespace cohort::recording
