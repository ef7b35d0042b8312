// SPDX-License-Identifier: BSD-3-Clause
//
// Neighbours in the order of collectives become one coalesced operation, which performs its members one after another:
// a single trip to the group's thread and back instead of many. Copying them into one flat message and back would save
// another 0.5 us for each member on shm, and cost 1 us and more for each copy; it would also change the bits on
// backends that divide messages among ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "torch/capture/compare.h"
#include "torch/capture/passes/passes.h"
#include "torch/capture/passes/schedule.h"

namespace cohort::recording {

namespace {

/// Functional collectives and their coalesced forms, which take a list where these take one tensor.
struct CoalescedForm {
  std::string_view single;
  const char* coalesced;
};
constexpr std::array coalesced_forms{
    CoalescedForm{"cohort::all_reduce", "cohort::all_reduce_coalesced"},
    CoalescedForm{"cohort::all_reduce_", "cohort::all_reduce_coalesced_"},
    CoalescedForm{"cohort::all_gather_into_tensor", "cohort::all_gather_into_tensor_coalesced"},
    CoalescedForm{"cohort::reduce_scatter_tensor", "cohort::reduce_scatter_tensor_coalesced"},
};

const CoalescedForm* coalesced_form_of(const Instruction& instruction) {
  const auto* const call = instruction.as<OperatorCall>();
  if (call == nullptr || call->group == nullptr) return nullptr;
  const auto found = std::find_if(coalesced_forms.begin(), coalesced_forms.end(), [&](const CoalescedForm& each) {
    return call->op.operator_name().name == each.single;
  });
  return found == coalesced_forms.end() ? nullptr : &*found;
}

bool is_fusable(const Collective& collective) {
  const auto type = collective.operation.type;
  return (type == OpType::all_reduce || type == OpType::broadcast || type == OpType::all_gather_single ||
          type == OpType::reduce_scatter_single) &&
         collective.ins.size() <= 1 && collective.outs.size() == 1 && collective.operation.reduce.user() == nullptr;
}

bool is_same_timeout(const Timeout& a, const Timeout& b) {
  return a.is_default() == b.is_default() && a.duration_or(no_timeout) == b.duration_or(no_timeout);
}

bool can_be_one(const Collective& a, const Collective& b) {
  return a.operation.type == b.operation.type && a.operation.dtype == b.operation.dtype &&
         a.operation.reduce == b.operation.reduce && a.options.async_op == b.options.async_op &&
         a.options.device == b.options.device && is_same_timeout(a.options.timeout, b.options.timeout);
}

class FusionPass {
 public:
  FusionPass(Program& program, std::size_t cap) : program_(program), schedule_(program), cap_(cap) {}

  PassReport run() {
    schedule_.move_waits_down();  // a wait between two collectives would hold them apart
    for (std::size_t place = 0; place < schedule_.size(); ++place) {
      const auto& instruction = schedule_.at(place);
      const auto* const call = instruction.as<CollectiveCall>();
      if (call != nullptr ? !is_fusable(*call->collective) : coalesced_form_of(instruction) == nullptr) continue;
      if (!join(place)) {
        fuse();
        batch_ = {place};
        bytes_ = bytes_at(place);
      }
      place = batch_.back();
    }
    fuse();
    schedule_.apply();
    for (auto& each : program_.instructions) {
      auto* const wait = each.as<CollectiveWait>();
      if (wait == nullptr) continue;
      const auto fused =
          std::find_if(flights_.begin(), flights_.end(), [&](const auto& pair) { return pair.first == wait->flight; });
      if (fused != flights_.end()) wait->flight = fused->second;
    }
    std::erase_if(program_.instructions, [](const Instruction& each) { return each.as<std::monostate>() != nullptr; });
    return {
        .name = "fuse_collectives", .count = fused_, .text = fmt::format("{} collectives became {}", fused_, batches_)};
  }

 private:
  std::size_t bytes_at(std::size_t place) const {
    const auto& instruction = schedule_.at(place);
    std::size_t in = 0;
    std::size_t out = 0;
    for (const auto id : instruction.reads) in += bytes_of(program_.values[id].shown);
    for (const auto id : instruction.writes) out += bytes_of(program_.values[id].shown);
    for (const auto& each : instruction.results) out += bytes_of(program_.values[each.value].shown);
    return std::max(in, out);
  }

  bool are_alike(const Instruction& a, const Instruction& b) const {
    if (group_of(a) != group_of(b) || a.action.index() != b.action.index()) return false;
    if (const auto* const call = a.as<CollectiveCall>()) {
      return can_be_one(*call->collective, *b.as<CollectiveCall>()->collective);
    }
    const auto& call = *a.as<OperatorCall>();
    const auto& other = *b.as<OperatorCall>();
    const auto& x = program_.values[a.tensors.front().value].shown;
    const auto& y = program_.values[b.tensors.front().value].shown;
    return call.op.operator_name() == other.op.operator_name() && call.is_blocking == other.is_blocking &&
           call.keys == other.keys && x.dtype == y.dtype && x.device == y.device &&
           std::equal(call.arguments.begin() + 1, call.arguments.end(), other.arguments.begin() + 1,
                      other.arguments.end(), is_same_constant);
  }

  bool join(std::size_t place) {
    if (batch_.empty() || bytes_ + bytes_at(place) > cap_) return false;
    if (!are_alike(schedule_.at(batch_.front()), schedule_.at(place))) return false;
    const auto bytes = bytes_at(place);
    auto gathered = schedule_.gather(batch_, place);
    if (gathered.empty()) return false;
    batch_ = std::move(gathered);
    bytes_ += bytes;
    return true;
  }

  /// Makes one collective of the batch, at the place of its last.
  void fuse() {
    const auto batch = std::exchange(batch_, {});
    if (batch.size() < 2) return;
    const auto& last = schedule_.at(batch.back());
    auto whole = last.as<CollectiveCall>() != nullptr ? fused_collective(batch) : fused_operator(batch);
    whole.region = last.region;
    whole.calls = last.calls;
    for (const auto place : batch) {
      auto& member = schedule_.at(place);
      whole.reads.insert(whole.reads.end(), member.reads.begin(), member.reads.end());
      whole.writes.insert(whole.writes.end(), member.writes.begin(), member.writes.end());
      const auto* const call = member.as<CollectiveCall>();
      if (call != nullptr && call->flight) {
        flights_.emplace_back(*call->flight, *whole.as<CollectiveCall>()->flight);
      }
      member = {};
    }
    schedule_.at(batch.back()) = std::move(whole);
    fused_ += batch.size();
    ++batches_;
  }

  Instruction fused_collective(const std::vector<std::size_t>& batch) const {
    const auto& last = *schedule_.at(batch.back()).as<CollectiveCall>();
    auto whole = std::make_shared<Collective>();
    const auto type = last.collective->operation.type;
    whole->operation.type = type == OpType::all_reduce ? OpType::all_reduce_coalesced : OpType::coalesced;
    whole->operation.dtype = last.collective->operation.dtype;
    whole->operation.reduce = last.collective->operation.reduce;
    whole->options = last.collective->options;
    for (const auto place : batch) {
      whole->members.push_back(*schedule_.at(place).as<CollectiveCall>()->collective);
    }
    return {.action = CollectiveCall{.group = last.group, .collective = std::move(whole), .flight = last.flight}};
  }

  Instruction fused_operator(const std::vector<std::size_t>& batch) const {
    const auto& last = schedule_.at(batch.back());
    auto call = *last.as<OperatorCall>();
    call.op = c10::Dispatcher::singleton().findSchemaOrThrow(coalesced_form_of(last)->coalesced, "");
    Instruction whole;
    c10::List<at::Tensor> tensors;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto& member = schedule_.at(batch[i]);
      const auto in_list = static_cast<int>(i);
      tensors.push_back(at::Tensor());
      whole.tensors.push_back({.position = 0, .in_list = in_list, .value = member.tensors.front().value});
      for (const auto& each : member.results) {
        whole.results.push_back({.position = 0, .in_list = in_list, .value = each.value});
      }
    }
    call.arguments.front() = tensors;
    whole.action = std::move(call);
    return whole;
  }

  Program& program_;
  Schedule schedule_;
  std::size_t cap_;
  std::vector<std::size_t> batch_;  // places of collectives that become one
  std::size_t bytes_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> flights_;  // of members, and of the whole
  std::size_t fused_ = 0;
  std::size_t batches_ = 0;
};

}  // namespace

PassReport fuse_collectives(Program& program, std::size_t cap) {
  if (program.instructions.empty()) return {.name = "fuse_collectives"};
  return FusionPass(program, cap).run();
}

}  // namespace cohort::recording
