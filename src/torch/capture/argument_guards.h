// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/capture.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch/capture/program.h"
#include "torch/capture/tensor_metadata.h"

namespace cohort::recording {

/// The arguments of the recorded call: everything but the tensors' values and addresses. Tensors that shared memory
/// share it again, and those that did not do not: a recording has one place for each of them.
class ArgumentGuards {
 public:
  explicit ArgumentGuards(const detail::CapturedCall& call);
  /// What the recording of this call knows of the arguments' memory: one that lies in memory of another tensor of the
  /// step must lie there again, and the others must not come to lie in memory that the recording keeps.
  void add_memory(const Program& program, const std::vector<bool>& are_shared);
  /// The first difference, in words, or nullopt.
  std::optional<std::string> failure(const detail::CapturedCall& call) const;

 private:
  /// The first tensor of the call in the same memory, which may be the tensor itself, and how far behind it this one
  /// begins.
  struct Sharing {
    std::size_t first = 0;
    std::ptrdiff_t bytes = 0;
    bool operator==(const Sharing&) const = default;
  };
  static Sharing sharing_of(const std::vector<at::Tensor>& tensors, std::size_t index);
  std::string name_of(std::size_t tensor) const;

  std::vector<detail::GuardedConstant> constants_;
  std::vector<TensorMetadata> tensors_;
  std::vector<TensorHooks> hooks_;
  std::vector<Sharing> sharing_;
  std::vector<const void*> memory_;
  std::vector<bool> lies_in_step_;                        ///< empty before add_memory()
  std::unordered_set<const c10::StorageImpl*> storages_;  ///< of the recording's constants
};

}  // namespace cohort::recording
