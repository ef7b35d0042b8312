// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/operator_traits.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "torch/capture/refusals.h"

namespace cohort::recording {

namespace {

bool draws_numbers(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return true;
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& each) {
    // Fused kernels (attention, recurrent networks) draw by themselves if they are given a probability.
    if (each.name().starts_with("dropout")) return true;
    const auto optional = each.type()->cast<c10::OptionalType>();
    const auto& type = optional == nullptr ? each.type() : optional->getElementType();
    return type->kind() == c10::TypeKind::GeneratorType;
  });
}

/// Normalisations update their running statistics, and rrelu its noise.
bool is_quietly_written(const c10::Argument& argument) {
  const auto& name = argument.name();
  return name == "running_mean" || name == "running_var" || name == "noise";
}

OperatorTraits found_traits(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  const auto& schema = op.schema();
  const bool is_of_libtorch = name.starts_with("aten::");
  const auto is_alias = [](const c10::Argument& each) {
    return each.alias_info() != nullptr && !each.alias_info()->isWrite();
  };
  OperatorTraits traits;
  traits.is_of_libtorch = is_of_libtorch;
  traits.is_random = draws_numbers(op);
  if (is_of_libtorch) {
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      if (is_quietly_written(schema.arguments()[i])) traits.quietly_written.push_back(i);
    }
  }
  traits.is_view = is_of_libtorch && !schema.returns().empty() &&
                   std::all_of(schema.returns().begin(), schema.returns().end(), is_alias);
  const auto is_tensor = [](const c10::Argument& each) {
    return each.type()->isSubtypeOf(*c10::TensorType::get()) || each.type()->isSubtypeOf(*c10::ListType::ofTensors());
  };
  traits.is_query = is_of_libtorch && !schema.returns().empty() &&
                    std::none_of(schema.returns().begin(), schema.returns().end(), is_tensor);
  traits.returns_uninitialized = name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
  traits.reads_elements = !traits.is_view && !name.ends_with("_like") && !name.starts_with("aten::new_");
  traits.is_wait = name == "cohort::wait_tensor";
  // The library's own operators declare no writes, so that no optimizer may reorder them.
  if (name.starts_with("cohort::")) {
    if (name.ends_with('_')) traits.written_argument = 0;
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      if (schema.arguments()[i].name() == "group") traits.group_argument = i;
      if (schema.arguments()[i].name() == "out") traits.written_argument = i;
    }
  }
  return traits;
}

}  // namespace

const OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  // An operator's name is one object for as long as the operator is registered.
  thread_local std::unordered_map<const c10::OperatorName*, OperatorTraits> known;
  const auto* const name = &op.operator_name();
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, found_traits(op)).first->second;
}

}  // namespace cohort::recording
