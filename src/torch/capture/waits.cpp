// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/waits.h"

#include <algorithm>
#include <set>
#include <utility>

namespace cohort::recording {

namespace {

struct InFlight {
  Instruction wait;  // a CollectiveWait
  std::set<std::size_t> read_storages{};
  std::set<std::size_t> written_storages{};
};

}  // namespace

Instruction wait_for(const Instruction& collective) {
  const auto& call = *collective.as<CollectiveCall>();
  return {.action = CollectiveWait{.group = call.group, .flight = call.flight.value()},
          .reads = collective.reads,
          .writes = collective.writes};
}

void add_missing_waits(Program& program) {
  const auto& values = program.values;
  std::set<std::size_t> awaited;
  for (const auto& each : program.instructions) {
    if (const auto* const wait = each.as<CollectiveWait>()) awaited.insert(wait->flight);
  }
  if (awaited.size() == program.flights) return;

  const auto touches = [&](const std::vector<ValueId>& ids, const std::set<std::size_t>& storages) {
    return std::any_of(ids.begin(), ids.end(), [&](ValueId id) { return storages.contains(values[id].storage); });
  };
  std::vector<Instruction> complete;
  std::vector<InFlight> in_flight;
  for (auto& each : program.instructions) {
    std::erase_if(in_flight, [&](InFlight& flight) {
      if (!touches(each.reads, flight.written_storages) && !touches(each.writes, flight.written_storages) &&
          !touches(each.writes, flight.read_storages)) {
        return false;
      }
      complete.push_back(std::move(flight.wait));
      return true;
    });
    const auto* const call = each.as<CollectiveCall>();
    if (call != nullptr && call->flight && !awaited.contains(*call->flight)) {
      InFlight flight{.wait = wait_for(each)};
      for (const auto id : each.reads) flight.read_storages.insert(values[id].storage);
      for (const auto id : each.writes) flight.written_storages.insert(values[id].storage);
      in_flight.push_back(std::move(flight));
    }
    complete.push_back(std::move(each));
  }
  for (auto& each : in_flight) complete.push_back(std::move(each.wait));
  program.instructions = std::move(complete);
}

}  // namespace cohort::recording
