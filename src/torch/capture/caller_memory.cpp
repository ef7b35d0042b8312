// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/caller_memory.h"

#include <set>
#include <unordered_set>

#include "torch/dtensor/impl.h"
#include "torch/written.h"

namespace cohort::recording {

namespace {

/// A distributed tensor and this rank's part of it have a version each.
void mark_both(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  cohort::mark_written(tensor);
  if (const auto* const distributed = dtensor::find_impl(tensor)) mark_both(distributed->local());
}

}  // namespace

CallerMemory::CallerMemory(const Program& program, std::span<const WatchedTensor> parameters) {
  std::set<std::size_t> written;
  for (const auto& each : program.instructions) {
    for (const auto id : each.writes) written.insert(program.values[id].storage);
  }
  const auto is_written = [&](ValueId id) { return written.contains(program.values[id].storage); };
  for (std::size_t i = 0; i < program.arguments.size(); ++i) {
    if (is_written(program.arguments[i])) arguments_.push_back(i);
  }
  for (std::size_t i = 0; i < program.gradients.size(); ++i) {
    if (program.gradients[i] && is_written(*program.gradients[i])) gradients_.push_back(i);
  }
  std::unordered_set<const c10::StorageImpl*> storages;
  for (ValueId id = 0; id < program.values.size(); ++id) {
    const auto& constant = program.values[id].constant;
    if (!constant.defined() || !is_written(id)) continue;
    tensors_.push_back(constant);
    storages.insert(constant.storage().unsafeGetStorageImpl());
  }
  for (const auto& each : parameters) {
    const auto* const distributed = dtensor::find_impl(each.tensor);
    if (distributed == nullptr || !distributed->local().has_storage()) continue;
    if (storages.contains(distributed->local().storage().unsafeGetStorageImpl())) tensors_.push_back(each.tensor);
  }
}

void CallerMemory::mark_written(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients) const {
  for (const auto i : arguments_) mark_both(arguments[i]);
  for (const auto i : gradients_) mark_both(gradients[i]);
  for (const auto& each : tensors_) cohort::mark_written(each);
}

}  // namespace cohort::recording
