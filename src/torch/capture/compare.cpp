// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/compare.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include "torch/capture/instruction_name.h"

namespace cohort::recording {

namespace {

using Difference = std::optional<RecordingDifference>;

std::string operator_text(const Instruction& instruction, std::size_t number) {
  return fmt::format("operator {}, {}", number, name_of(instruction));
}

Difference other_operators(const std::string& where, std::string what) {
  return RecordingDifference{.reason = CaptureRefusal::changing_operators, .where = where, .what = std::move(what)};
}

/// Equal bits: a NaN equals itself, and the zeros differ.
bool is_same_number(double a, double b) {
  return std::memcmp(&a, &b, sizeof(double)) == 0;
}

}  // namespace

bool is_same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) return is_same_number(a.toDouble(), b.toDouble());
  if (a.isDoubleList() && b.isDoubleList()) {
    const auto x = a.toDoubleVector();
    const auto y = b.toDoubleVector();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), is_same_number);
  }
  if (a.isTensor() || b.isTensor()) return a.isTensor() && b.isTensor();  // undefined ones
  if (a.isTensorList() || a.isOptionalTensorList()) return b.isList() && a.toListRef().size() == b.toListRef().size();
  if (a.isGenerator() && b.isGenerator()) return a.toGenerator() == b.toGenerator();
  return a == b;
}

namespace {

Difference compare_arguments(const OperatorCall& a, const OperatorCall& b, const std::string& where) {
  const auto& arguments = a.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto is_of_host = [i](const HostNumber& each) { return each.position == i; };
    if (std::any_of(a.host_numbers.begin(), a.host_numbers.end(), is_of_host)) continue;
    if (is_same_constant(a.arguments[i], b.arguments[i])) continue;
    return RecordingDifference{.reason = CaptureRefusal::changing_number,
                               .where = fmt::format("{}, argument {}", where, arguments[i].name()),
                               .what = fmt::format("it was {} in one recording and {} in the next",
                                                   constant_text(a.arguments[i]), constant_text(b.arguments[i]))};
  }
  return std::nullopt;
}

bool is_same_place(const TensorPlace& a, const TensorPlace& b) {
  return a.position == b.position && a.in_list == b.in_list && a.value == b.value;
}

bool is_same_piece(const Piece& a, const Piece& b) {
  return a.value == b.value && a.offset == b.offset && a.bytes == b.bytes;
}

bool is_same_collective(const Collective& a, const Collective& b) {
  const auto& x = a.operation;
  const auto& y = b.operation;
  return x.type == y.type && x.dtype == y.dtype && x.reduce == y.reduce &&
         is_same_number(x.reduce.factor(), y.reduce.factor()) && x.root == y.root && x.peer == y.peer &&
         x.tag == y.tag && x.layout == y.layout && a.options.async_op == b.options.async_op &&
         std::equal(a.ins.begin(), a.ins.end(), b.ins.begin(), b.ins.end(), is_same_piece) &&
         std::equal(a.outs.begin(), a.outs.end(), b.outs.begin(), b.outs.end(), is_same_piece) &&
         std::equal(a.members.begin(), a.members.end(), b.members.begin(), b.members.end(), is_same_collective);
}

/// How an action differs from another one of the same type, but for an operator's arguments; null if it does not.
struct ActionDifference {
  static constexpr const char* other_flight = "it waits for another collective in the next recording";
  static constexpr const char* other_group = "it is on another group in the next recording";

  const char* operator()(std::monostate /*a*/, std::monostate /*b*/) const { return nullptr; }
  const char* operator()(const HostCall& /*a*/, const HostCall& /*b*/) const { return nullptr; }
  const char* operator()(const OperatorCall& a, const OperatorCall& b) const {
    if (a.group != b.group) return other_group;
    const bool is_same = a.keys == b.keys && a.is_blocking == b.is_blocking;
    return is_same ? nullptr : "it has another kernel in the next recording";
  }
  const char* operator()(const CollectiveCall& a, const CollectiveCall& b) const {
    if (a.flight != b.flight) return other_flight;
    if (a.group != b.group) return other_group;
    const bool is_same = is_same_collective(*a.collective, *b.collective);
    return is_same ? nullptr : "it has other memory or other options in the next recording";
  }
  const char* operator()(const CollectiveWait& a, const CollectiveWait& b) const {
    if (a.flight != b.flight) return other_flight;
    return a.group == b.group ? nullptr : other_group;
  }
  const char* operator()(const OpaqueCall& a, const OpaqueCall& b) const {
    const bool is_same = a.name == b.name && a.inputs == b.inputs && a.returned == b.returned;
    return is_same ? nullptr : "it is another opaque function, or returns otherwise, in the next recording";
  }
  const char* operator()(const DistributedCall& a, const DistributedCall& b) const {
    return a == b ? nullptr : "it has other constants in the next recording";
  }
  template <class A, class B>
  const char* operator()(const A& /*a*/, const B& /*b*/) const {
    return "it is a call of another kind in the next recording";
  }
};

Difference compare_instructions(const Instruction& a, const Instruction& b, std::size_t number) {
  const auto where = operator_text(a, number);
  if (kind_of(a) != kind_of(b) || name_of(a) != name_of(b)) {
    return other_operators(where, fmt::format("the next recording has {} there", name_of(b)));
  }
  if (a.region != b.region || a.reads != b.reads) {
    return other_operators(where, "it is part of another call, or on other tensors, in the next recording");
  }
  if (const auto* const differs = std::visit(ActionDifference(), a.action, b.action)) {
    return other_operators(where, differs);
  }
  if (!std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), is_same_place) ||
      !std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), is_same_place)) {
    return other_operators(where, "it is applied to other tensors in the next recording");
  }
  const auto* const call = a.as<OperatorCall>();
  return call != nullptr ? compare_arguments(*call, *b.as<OperatorCall>(), where) : std::nullopt;
}

RecordingDifference made_by_host(const at::Tensor& constant, std::string why) {
  return {.reason = CaptureRefusal::host_write,
          .where = fmt::format("a tensor of sizes {} that no operator of the step made",
                               constant_text(constant.sizes().vec())),
          .what = std::move(why)};
}

/// The first operator that takes this value, and the argument as which.
std::string first_use(const Program& program, ValueId value) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto& each = program.instructions[i];
    const auto place =
        std::find_if(each.tensors.begin(), each.tensors.end(), [&](const auto& it) { return it.value == value; });
    if (place == each.tensors.end()) continue;
    const auto where = operator_text(each, i);
    const auto* const call = each.as<OperatorCall>();
    if (call == nullptr) return where;
    return fmt::format("{}, argument {}", where, call->op.schema().arguments()[place->position].name());
  }
  return "a number among the operands of an operator";
}

/// A constant is a tensor that was there before the step, or a number that libtorch made a tensor of.
Difference compare_constants(const Program& program, const at::Tensor& a, const at::Tensor& b, ValueId id) {
  const bool is_same_memory = a.storage().data() == b.storage().data();
  if (is_same_memory) return std::nullopt;
  if (a.dim() != 0 || !a.is_cpu()) {
    return made_by_host(
        a, fmt::format("each recording has another one ({}): the host makes or replaces it", first_use(program, id)));
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0) return std::nullopt;
  return RecordingDifference{.reason = CaptureRefusal::changing_number,
                             .where = first_use(program, id),
                             .what = fmt::format("it was {} in one recording and {} in the next",
                                                 constant_text(a.item()), constant_text(b.item()))};
}

}  // namespace

std::optional<RecordingDifference> difference(const Program& first, const Program& second) {
  const auto both = std::min(first.instructions.size(), second.instructions.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (auto found = compare_instructions(first.instructions[i], second.instructions[i], i)) return found;
  }
  if (first.instructions.size() != second.instructions.size()) {
    return other_operators("the end", fmt::format("one recording has {} operators and the next {}",
                                                  first.instructions.size(), second.instructions.size()));
  }
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    if (!(first.values[i].shown == second.values[i].shown))
      return other_operators(fmt::format("value {}", i), "it has other sizes, strides or dtype");
    if (!first.values[i].constant.defined()) continue;
    if (auto found = compare_constants(first, first.values[i].constant, second.values[i].constant, i)) return found;
  }
  const auto is_same_gradient = [](const FinalGradient& a, const FinalGradient& b) {
    return a.parameter == b.parameter && a.tensor == b.tensor;
  };
  if (first.outputs != second.outputs || first.gradients != second.gradients ||
      !std::equal(first.final_gradients.begin(), first.final_gradients.end(), second.final_gradients.begin(),
                  second.final_gradients.end(), is_same_gradient)) {
    return other_operators("the end", "the step leaves other tensors as results or gradients");
  }
  return std::nullopt;
}

std::optional<RecordingDifference> constant_of_the_step(const Program& program) {
  std::unordered_map<const c10::StorageImpl*, std::size_t> own;  // how often the program itself holds each storage
  for (const auto& each : program.values) {
    if (each.constant.defined()) ++own[each.constant.storage().unsafeGetStorageImpl()];
  }
  for (const auto& each : program.values) {
    const auto& constant = each.constant;
    if (!constant.defined() || each.is_of_recorder || (constant.dim() == 0 && constant.is_cpu())) continue;
    if (constant.storage().use_count() > own[constant.storage().unsafeGetStorageImpl()]) continue;
    return made_by_host(constant, "nobody holds it when the step has ended: the host makes it in the step");
  }
  return std::nullopt;
}

}  // namespace cohort::recording
