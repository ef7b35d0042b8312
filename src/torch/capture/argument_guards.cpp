// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/argument_guards.h"

#include <fmt/format.h>

namespace cohort::recording {

namespace {

using detail::GuardedConstant;

/// Null if the tensor has no memory of its own (undefined, sparse).
const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const auto* const distributed = dtensor::find_impl(tensor);
  return (distributed != nullptr ? distributed->local() : tensor)
      .unsafeGetTensorImpl()
      ->unsafe_storage()
      .unsafeGetStorageImpl();
}

/// `number`: of the argument, from 1 on; 0 is the type of the result.
std::string constant_difference(std::size_t number, const GuardedConstant& was, const GuardedConstant& is) {
  if (number == 0) return fmt::format("the type of the result was {} and is {}", was.text, is.text);
  if (was.types != is.types && was.text == is.text) {
    return fmt::format("argument {}, {}, was a number of another type", number, was.text);
  }
  if (was.text == is.text)
    return fmt::format("argument {} was the group {} and is another one with this id", number, was.text);
  const auto is_group = [](const GuardedConstant& each) {
    return each.groups.size() == 1 && each.groups.front() != nullptr;
  };
  if (is_group(was) && is_group(is)) {
    return fmt::format("argument {} was the group {} and is the group {}", number, was.text, is.text);
  }
  return fmt::format("argument {} was {} and is {}", number, was.text, is.text);
}

}  // namespace

ArgumentGuards::ArgumentGuards(const detail::CapturedCall& call) : constants_(call.constants) {
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    tensors_.emplace_back(call.tensors[i]);
    hooks_.push_back(hooks_of(call.tensors[i]));
    sharing_.push_back(sharing_of(call.tensors, i));
    memory_.push_back(memory_of(call.tensors[i]));
  }
}

void ArgumentGuards::add_memory(const Program& program, const std::vector<bool>& are_shared) {
  lies_in_step_.clear();
  for (const auto id : program.arguments) lies_in_step_.push_back(are_shared[id]);
  storages_.clear();
  for (const auto& each : program.values) {
    if (!each.constant.defined() || each.constant.unsafeGetTensorImpl()->is_wrapped_number()) continue;
    storages_.insert(each.constant.storage().unsafeGetStorageImpl());
  }
}

ArgumentGuards::Sharing ArgumentGuards::sharing_of(const std::vector<at::Tensor>& tensors, std::size_t index) {
  const auto* const storage = storage_of(tensors[index]);
  if (storage == nullptr) return {.first = index};
  for (std::size_t i = 0; i < index; ++i) {
    if (storage_of(tensors[i]) != storage) continue;
    return {
        .first = i,
        .bytes = static_cast<const char*>(memory_of(tensors[index])) - static_cast<const char*>(memory_of(tensors[i]))};
  }
  return {.first = index};
}

std::string ArgumentGuards::name_of(std::size_t tensor) const {
  for (std::size_t i = 1; i < constants_.size(); ++i) {
    const auto count = constants_[i].tensors;
    if (tensor < count) {
      return count == 1 ? fmt::format("argument {}", i) : fmt::format("tensor {} of argument {}", tensor + 1, i);
    }
    tensor -= count;
  }
  return "an argument";
}

std::optional<std::string> ArgumentGuards::failure(const detail::CapturedCall& call) const {
  if (call.constants.size() != constants_.size()) {
    return fmt::format("the call had {} arguments and has {}", constants_.size() - 1, call.constants.size() - 1);
  }
  for (std::size_t i = 0; i < constants_.size(); ++i) {
    if (call.constants[i] != constants_[i]) return constant_difference(i, constants_[i], call.constants[i]);
  }
  if (call.tensors.size() != tensors_.size()) {
    return fmt::format("the arguments had {} tensors and have {}", tensors_.size(), call.tensors.size());
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].fits(call.tensors[i])) return tensors_[i].failure(name_of(i), call.tensors[i]);
    if (hooks_of(call.tensors[i]) != hooks_[i]) return fmt::format("{} has other backward hooks", name_of(i));
    if (!lies_in_step_.empty()) {
      if (lies_in_step_[i] && memory_of(call.tensors[i]) != memory_[i]) {
        return fmt::format("{} was in memory that the step uses by itself as well, and is not", name_of(i));
      }
      if (!lies_in_step_[i] && storages_.contains(storage_of(call.tensors[i]))) {
        return fmt::format("{} is in memory that the step uses by itself as well, and was not", name_of(i));
      }
    }
    const auto sharing = sharing_of(call.tensors, i);
    if (sharing == sharing_[i]) continue;
    if (sharing.first == i)
      return fmt::format("{} shared memory with {} and does not", name_of(i), name_of(sharing_[i].first));
    if (sharing_[i].first == i)
      return fmt::format("{} shares memory with {} and did not", name_of(i), name_of(sharing.first));
    return fmt::format("{} shares memory with {} in another way", name_of(i), name_of(sharing.first));
  }
  return std::nullopt;
}

}  // namespace cohort::recording
